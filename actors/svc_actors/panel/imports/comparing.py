"""Compares the answers of an old and a new host to one URL. Pure functions.

Pages are compared by their words, in the helper of the site's files (`svc_webhost.confined.pages`), because a page is
untrusted input from either host. Everything else is compared byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from svc_webhost.confined.pages import path_of

SIMILAR: Final = 0.9
"""The share of a page's words that must be the same on both hosts."""
_LONGEST: Final = 2000
"""The most characters of an address that are compared."""
_TAKEN: Final = re.compile(r"[^.].*\.(?:css|js|png|jpe?g|gif|webp|svg|ico|woff2?|txt|html?|pdf|xml)", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """`body` is cut if it is long; `size` and `digest` (SHA-256) cover everything that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    size: int
    digest: bytes

    @property
    def is_page(self) -> bool:
        return "html" in self.headers.get("content-type", "")


def difference(old: Answer, new: Answer, names: frozenset[str]) -> str | None:
    """The difference in words; None if visitors get the same, apart from the words of pages (`are_pages`). A redirect
    to one of the site's `names` counts as one to a path."""
    if old.status != new.status:
        return f"{new.status} instead of {old.status}"
    before, now = (path_of(answer.headers.get("location", "")[:_LONGEST], names) for answer in (old, new))
    if before != now:
        return f"it leads to {now[:200]} instead of {before[:200]}"
    if old.status // 100 == 2 and not are_pages(old, new) and old.digest != new.digest:
        return f"other content: {new.size:,} bytes instead of {old.size:,}"
    return None


def are_pages(old: Answer, new: Answer) -> bool:
    return old.status // 100 == 2 and old.is_page and new.is_page


def difference_of_pages(similarity: float) -> str | None:
    return None if similarity >= SIMILAR else f"{similarity:.0%} of its words are the same"


def is_asked(name: str) -> bool:
    """Whether this is a static file, so that requesting it runs no script."""
    return _TAKEN.fullmatch(name) is not None


def check(name: str, fine: bool, otherwise: str, *, stops: bool = True) -> dict[str, Any]:
    """A line of the report. `stops` False: a failure is reported but blocks nothing."""
    return {"name": name, "ok": fine or not stops, "reason": None if fine else otherwise}
