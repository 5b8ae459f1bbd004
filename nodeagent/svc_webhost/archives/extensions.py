"""PHP extensions that a site needs, from its own files: requirements in composer.json, and extensions that php.ini and
.user.ini of its folders load. Also those of its old host, if known (`svc_webhost.archives.fetched`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from svc_webhost.archives.model import FoundSite, Survey

WANTED: Final = re.compile(
    r"(?:(?!(?:vendor|node_modules|wp-content|cache)/)[^/]+/){0,8}(?:composer\.json|php\.ini|\.user\.ini)"
)
"""The files to read. Files of libraries are not among them: there can be hundreds, and the application's own file names
its requirements."""
_LOADED: Final = re.compile(r"^[ \t]*(?:zend_)?extension[ \t]*=[ \t]*[\"']?(?:[^\s\"';]*/)?([\w-]+)", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z0-9_]{1,40}")
_MOST: Final = 100


def extensions_of(survey: Survey, site: FoundSite) -> list[str]:
    """Sorted by name."""
    above = site.root.rpartition("/")[0]
    named: list[str] = []
    for folder in (site.root, above, *site.home):
        prefix = f"{folder}/" if folder else ""
        named += _required(survey.text(f"{prefix}composer.json"))
        for name in ("php.ini", ".user.ini"):
            named += _LOADED.findall(survey.text(f"{prefix}{name}"))
    return extension_names(named)


def extension_names(said: Iterable[object]) -> list[str]:
    """In the form in which PHP's names are compared: `Zend OPcache`, `opcache.so` and `ext-zend-opcache` are the
    same."""
    words = (re.sub(r"[ -]+", "_", str(each).strip().lower().removesuffix(".so")) for each in said)
    bare = (re.sub(r"^(?:php_|zend_)(?=.)", "", word) for word in words)
    return sorted({word for word in bare if _NAME.fullmatch(word)})[:_MOST]


def _required(text: str) -> Iterator[str]:
    try:
        required = json.loads(text or "{}")["require"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if isinstance(required, dict):
        yield from (name.removeprefix("ext-") for name in required if str(name).lower().startswith("ext-"))
