"""Replaces URLs of one site by those of another, in any text: pages, JSON, settings.

A host is replaced after two slashes, in any notation: `//`, `\\/\\/` as in JSON, also in JSON inside of JSON, `%2F%2F`.
So email addresses stay, and so do longer names (`//shop.example.org`, `//example.org.uk`). A home folder is replaced
wherever its path is found. Pure functions, of the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_SLASH: Final = rb"(?:/|%2[Ff]|(?<!\\)\\+(?:/|u002[Ff]))"
"""Matches only at the first backslash of a sequence, so that a sequence without a slash is scanned once."""
_BEHIND_HOST: Final = rb"(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"
_BEHIND_NAME: Final = rb"(?![A-Za-z0-9_.-])"


class Addresses:
    """`hosts`: new host by old host. `homes`: old and new home folder; both have the same parent folder."""

    def __init__(self, hosts: Mapping[str, str], homes: tuple[str, str] | None = None) -> None:
        self._hosts = {old.lower().encode(): new.encode() for old, new in hosts.items()}
        # Longest first: if two names start the same, the longer one has to be tried first.
        names = b"|".join(re.escape(name) for name in sorted(self._hosts, key=len, reverse=True))
        self._host = re.compile(rb"(%b{2})(%b)%b" % (_SLASH, names, _BEHIND_HOST), re.IGNORECASE)
        self._needles = list(self._hosts)
        self._home: re.Pattern[bytes] | None = None
        self._new_home = b""
        if homes is not None:
            *parts, last = homes[0].strip("/").split("/")
            self._new_home = homes[1].rstrip("/").rpartition("/")[2].encode()
            path = _SLASH + _SLASH.join(re.escape(part.encode()) for part in parts) + _SLASH
            self._home = re.compile(rb"(%b)%b%b" % (path, re.escape(last.encode()), _BEHIND_NAME))
            self._needles.append(last.encode())

    def may_be_in(self, text: bytes) -> bool:
        """False if nothing would be replaced. Fast, since most texts have no URL."""
        lower = text.lower()
        return any(needle in lower for needle in self._needles)

    def replace(self, text: bytes) -> bytes:
        text = substituted(self._host, lambda found: found[1] + self._hosts[found[2].lower()], text)
        if self._home is None:
            return text
        return substituted(self._home, lambda found: found[1] + self._new_home, text)


def substituted(
    pattern: re.Pattern[bytes], change: Callable[[re.Match[bytes]], bytes], text: bytes, at: int = 0
) -> bytes:
    """As `pattern.sub`, from `at` on, with less memory: `sub` keeps an object for each match, hundreds of megabytes for
    a text with millions of them. This keeps the text and the result."""
    out, kept = bytearray(), 0
    whole = memoryview(text)
    for found in pattern.finditer(text, at):
        out += whole[kept : found.start()]
        out += change(found)
        kept = found.end()
    if kept == 0:
        return text
    out += whole[kept:]
    return bytes(out)
