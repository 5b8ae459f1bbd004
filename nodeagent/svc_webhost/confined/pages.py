"""Compares pages and sitemaps of a site's old host and this one, by their words.

Words instead of bytes, since times, nonces and visitor numbers differ each time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from svc_webhost.confined.protocol import ComparePages, ReadSitemap

_WORD: Final = re.compile(r"\w+")
_HIDDEN: Final = re.compile(r"<(?:(script|style)\b|(!--)|)", re.IGNORECASE)
_ENDS: Final = {
    "script": re.compile("</script>", re.IGNORECASE),
    "style": re.compile("</style>", re.IGNORECASE),
    "!--": re.compile("-->"),
    "": re.compile(">"),
}
_LOCATION: Final = re.compile(r"<loc>\s*([^<\s]{1,2000})\s*</loc>")


def compare(request: ComparePages, payload: bytes) -> dict[str, Any]:
    return {"similarity": similarity(payload[: request.length], payload[request.length :])}


def read_sitemap(request: ReadSitemap, payload: bytes) -> tuple[dict[str, Any], bytes]:
    paths = paths_of_sitemap(payload, frozenset(request.names))
    return {}, json.dumps(list(islice(paths, request.most))).encode()


def similarity(one: bytes, other: bytes) -> float:
    """The share of the longer page's words that the other has too, counting repetitions."""
    left = Counter(words(one))
    most, total, shared = left.total(), 0, 0
    for word in words(other):
        total += 1
        if left.get(word, 0) > 0:
            left[word] -= 1
            shared += 1
    return 1.0 if max(most, total) == 0 else shared / max(most, total)


def words(body: bytes) -> Iterator[str]:
    """The words that visitors read: without tags, scripts, styles and comments."""
    page = body.decode(errors="replace")
    return (found[0] for part in _shown(page) for found in _WORD.finditer(page, *part))


def _shown(page: str) -> Iterator[tuple[int, int]]:
    """The ranges of visible text. A `<` that starts no complete tag is text."""
    begin, without_end = 0, set[str]()
    while (opens := _HIDDEN.search(page, begin)) is not None:
        yield begin, opens.start()
        begin = opens.start() + 1
        for kind in dict.fromkeys(((opens[1] or opens[2] or "").lower(), "")):
            # If the end is not found from here, it cannot be found from any later position, either.
            end = None if kind in without_end else _ENDS[kind].search(page, opens.end())
            if end is not None:
                begin = end.end()
                break
            without_end.add(kind)
    yield begin, len(page)


def paths_of_sitemap(body: bytes, names: frozenset[str]) -> Iterator[str]:
    """The paths of the site itself."""
    for found in _LOCATION.finditer(body.decode(errors="replace")):
        path = path_of(found[1], names)
        if path.startswith("/") and "&" not in path:
            yield path


def path_of(address: str, names: frozenset[str]) -> str:
    """The path of a URL of the site; any other URL as it is."""
    found = re.fullmatch(r"https?://([^/:?#]+)(?::[0-9]+)?(/[^#]*)?(?:#.*)?", address)
    return address if found is None or found[1].lower() not in names else found[2] or "/"
