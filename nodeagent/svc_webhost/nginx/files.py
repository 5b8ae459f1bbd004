"""Rules for a site's files: which page answers paths without a file, and which files browsers may keep.

The page of a single-page application answers with the status 200, so that a visitor can open or reload any of the
application's addresses. Denied and protected paths come first, hidden files and sources of programs keep their rules,
and a missing asset is 404 (`svc_webhost.assets`). If the page itself is missing, so is every path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from svc_webhost.assets import ASSETS, HASHED

NOTHING: Final = "=404"
_A_YEAR: Final = "max-age=31536000, immutable"


def files_rules(
    indexes: str, missing: str, *, page: str | None = None, cached: Sequence[str] | None = None
) -> Iterator[str]:
    """`missing`: the last argument of `try_files`, which answers for a path without a file. `page`: the page that
    answers for such a path. `cached`: the headers of assets that browsers may keep (`kept_for_a_year`); None: they may
    keep none. These come after other rules with expressions, since the first one that matches applies."""
    missing_asset = missing if page is None else NOTHING
    if page is not None:
        # Without this rule nginx would look for a page that is missing again and again.
        yield f'location ~ "(?s)^{re.escape(page)}(?!.)" {{'
        yield f"try_files $uri {NOTHING};"
        yield "}"
    if cached is not None:
        yield f'location ~ "{HASHED}" {{'
        yield from cached
        yield f"try_files $uri $uri/ {missing_asset};"
        yield "}"
    if page is not None:
        yield rf'location ~ "(?s)\.(?i:{ASSETS})(?!.)" {{'
        yield f"try_files $uri $uri/ {missing_asset};"
        yield "}"
    # The absolute path at the end answers for folders that have none of the other pages.
    yield f"index {indexes}{'' if page is None else f' {page}'};"
    yield "location / {"
    yield f"try_files $uri $uri/ {missing};"
    yield "}"


def kept_for_a_year(headers: Sequence[str], *, public: bool) -> list[str]:
    """The headers of an asset that never changes. `headers` are those of the site, repeated because `add_header` at an
    inner level replaces all of the outer one. Files for which somebody gave a password are not `public`: caches that
    others share would keep them (RFC 9111, section 3.5)."""
    return [*headers, f'add_header Cache-Control "{"public" if public else "private"}, {_A_YEAR}";']
