"""The page that answers for paths without a file: the rules that Vue, React, Angular and Vite document for single-page
applications, and FallbackResource.

The site's setting `fallback_page` does the same, with two differences that the reason names: a missing script, style or
picture is 404 (`svc_webhost.assets`), and a folder without an index page gets the page, where Apache answers 403.
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.accepted import is_fallback_page
from svc_webhost.assets import ASSETS
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import FallbackPage, Opinion, blocks, translated

_PAGE: Final = re.compile(r"(\./|/)?([^/$%?][^$%?]*\.html?)")
_NOT_ASSETS: Final = re.compile(r"!(?:\.\*)?\\\.\((?:\?:)?([a-z0-9|]+)\)\$")
"""A condition that leaves out files with these endings."""
_ENDINGS: Final = frozenset(ASSETS.split("|"))


def page_of(target: str, *, base_is_top: bool) -> str | None:
    """The path of the page that is the target of a rule at the top of the site; None if it is none."""
    match = _PAGE.fullmatch(target)
    if match is None or not (match[1] == "/" or base_is_top):
        return None
    page = f"/{match[2]}"
    return page if is_fallback_page(page) else None


def is_not_about_page(words: tuple[str, ...], page: str) -> bool:
    """Whether the condition of a rule only leaves out the page itself, or files whose absence is answered with 404."""
    if words[0] != "%{REQUEST_URI}":
        return False
    if len(words) == 2 and words[1] in (f"!={page}", f"!^{page}", f"!^{re.escape(page)}", f"!^{re.escape(page)}$"):
        return True
    # As AngularJS documented it. Paths that contain the word get the page here, too.
    if words[1:] == ("!index",):
        return True
    match = _NOT_ASSETS.fullmatch(words[1])
    return match is not None and words[2:] in ((), ("[NC]",)) and set(match[1].split("|")) <= _ENDINGS


def falling_back(page: str, situation: Situation) -> Opinion:
    """The opinion on a line that has `page` answer for all paths without a file."""
    if situation.fallback_page == page:
        return translated(
            "The page answers for paths without a file, and for folders without an index page. A missing script, "
            "style, picture or font is 404."
        )
    if situation.fallback_page is not None:
        return blocks(f"The site answers with {situation.fallback_page} for paths without a file.")
    if situation.wordpress:
        return blocks("WordPress answers for paths without a file.")
    return blocks(f"Have {page} answer for paths without a file (`fallback_page`).", FallbackPage(page))
