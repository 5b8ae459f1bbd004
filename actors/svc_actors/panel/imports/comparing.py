"""What an old and a new host answer to one address, and how they differ. Pure functions.

Of pages the words are compared, and not the bytes: times, nonces and numbers of visitors are different each time. Of
everything else the bytes are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

SIMILAR: Final = 0.9
"""Of the words of a page, so many are the same."""
_TAGS: Final = re.compile(r"<script\b.*?</script>|<style\b.*?</style>|<!--.*?-->|<[^>]*>", re.DOTALL | re.IGNORECASE)
_LOCATION: Final = re.compile(r"<loc>\s*([^<\s]{1,2000})\s*</loc>")
_TAKEN: Final = re.compile(r"[^.].*\.(?:css|js|png|jpe?g|gif|webp|svg|ico|woff2?|txt|html?|pdf|xml)", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """`body` is its beginning, where it is long; `size` and `digest` (SHA-256) are of all that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    size: int
    digest: bytes

    @property
    def is_page(self) -> bool:
        return "html" in self.headers.get("content-type", "")


def difference(old: Answer, new: Answer, names: frozenset[str]) -> str | None:
    """In words; None where visitors get the same. A redirect to one of the site's `names` is one to a path."""
    if old.status != new.status:
        return f"{new.status} instead of {old.status}"
    before, now = (_path(answer.headers.get("location", ""), names) for answer in (old, new))
    if before != now:
        return f"it leads to {now[:200]} instead of {before[:200]}"
    if old.status // 100 != 2:
        return None
    if old.is_page and new.is_page:
        share = similarity(words(old.body), words(new.body))
        return None if share >= SIMILAR else f"{share:.0%} of its words are the same"
    if old.digest != new.digest:
        return f"other content: {new.size:,} bytes instead of {old.size:,}"
    return None


def words(body: bytes) -> Counter[str]:
    return Counter(re.findall(r"\w+", _TAGS.sub(" ", body.decode(errors="replace"))))


def similarity(one: Counter[str], other: Counter[str]) -> float:
    most = max(one.total(), other.total())
    return 1.0 if most == 0 else (one & other).total() / most


def paths_of_sitemap(body: bytes, names: frozenset[str]) -> Iterator[str]:
    """Those of the site itself."""
    for address in _LOCATION.findall(body.decode(errors="replace")):
        path = _path(address, names)
        if path.startswith("/") and "&" not in path:
            yield path


def is_asked(name: str) -> bool:
    """A file that visitors are given as it is: no script is run that no visitor would have run."""
    return _TAKEN.fullmatch(name) is not None


def _path(address: str, names: frozenset[str]) -> str:
    found = re.fullmatch(r"https?://([^/:?#]+)(?::[0-9]+)?(/[^#]*)?(?:#.*)?", address)
    return address if found is None or found[1].lower() not in names else found[2] or "/"


def check(name: str, fine: bool, otherwise: str, *, stops: bool = True) -> dict[str, Any]:
    """A line of the report. `stops` False: it is named, and stops nobody."""
    return {"name": name, "ok": fine or not stops, "reason": None if fine else otherwise}
