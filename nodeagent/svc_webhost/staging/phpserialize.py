"""Changes texts inside of PHP's serialised data (serialize()) byte by byte, and adjusts their lengths.

The values are never constructed: an object of a class would run its code. A text may be serialised data again, as
WordPress stores options that were serialised twice; it is changed in the same way. Keys of arrays and names of
properties stay, as does an object's own format (C:), unless that is serialised data as well. Pure functions, of the
standard library alone.

The grammar, in bytes (`n` is a number of bytes, or of elements):

    N;  b:0;  i:-1;  d:0.5;  r:2;  R:2;  s:n:"text";  S:n:"\\74ext";  E:n:"Class:Case";
    a:n:{key value ...}  O:n:"Class":n:{key value ...}  C:n:"Class":n:{anything}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MOST_NESTED: Final = 16
"""The most levels of serialised data within texts; deeper levels stay as they are."""
_ATOM: Final = re.compile(rb"N;|b:[01];|[irR]:[+-]?[0-9]+;|d:[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|INF|NAN);")
_SIZED: Final = re.compile(rb'([sSE]):([0-9]{1,12}):"')
_ARRAY: Final = re.compile(rb"a:([0-9]{1,12}):\{")
_OBJECT: Final = re.compile(rb'([OC]):([0-9]{1,6}):"')
_COUNT: Final = re.compile(rb'":([0-9]{1,12}):\{')
_BEGINS: Final = re.compile(rb'(?:[sSE]:[0-9]+:"|a:[0-9]+:\{|[OC]:[0-9]+:")')
_ESCAPED: Final = re.compile(rb"\\([0-9a-fA-F]{2})")

Change = Callable[[bytes], bytes]


class _Malformed(Exception):  # noqa: N818 - never leaves this module
    """The data is not PHP's, or incomplete."""


def changed(value: bytes, change: Change, nested: int = 0) -> bytes:
    """The value with `change` applied: to its texts if it is serialised data, else to all of it. Invalid data, for
    example truncated, stays as it is: no length in it could be trusted."""
    if nested > MOST_NESTED:
        return value
    if not is_like_serialized(value):
        return change(value)
    try:
        return _Scanner(value, change, nested).all()
    except _Malformed:
        return value


def is_like_serialized(value: bytes) -> bool:
    """Whether it starts like a serialised text, array or object."""
    return _BEGINS.match(value) is not None


class _Scanner:
    """Scans once from start to end, with recursion only for texts within texts: arrays may be nested as deep as they
    are long."""

    def __init__(self, data: bytes, change: Change, nested: int) -> None:
        self._data = data
        self._change = change
        self._nested = nested
        self._at = 0
        self._kept = 0
        """Everything before this position was written."""
        self._out = bytearray()
        self._open: list[int] = []
        """For each array and object being read: how many keys and values are still to come."""

    def all(self) -> bytes:
        while True:
            self._one()
            while self._open and self._open[-1] == 0:
                self._expect(b"}")
                self._open.pop()
                self._ended()
            if not self._open:
                break
        if self._at != len(self._data):
            raise _Malformed
        if self._kept == 0:
            return self._data
        self._out += memoryview(self._data)[self._kept :]
        return bytes(self._out)

    def _one(self) -> None:
        """Read a value, or the start of one with elements."""
        at_key = bool(self._open) and self._open[-1] % 2 == 0
        if found := _ATOM.match(self._data, self._at):
            if at_key and not found[0].startswith(b"i"):
                raise _Malformed
            self._at = found.end()
        elif found := _SIZED.match(self._data, self._at):
            self._text(found, at_key=at_key)
        elif at_key:
            raise _Malformed
        elif found := _ARRAY.match(self._data, self._at):
            self._at = found.end()
            self._open.append(2 * int(found[1]))
            return
        elif found := _OBJECT.match(self._data, self._at):
            self._at = found.end() + int(found[2])
            counted = _COUNT.match(self._data, self._at)
            if counted is None:
                raise _Malformed
            if found[1] == b"O":
                self._at = counted.end()
                self._open.append(2 * int(counted[1]))
                return
            self._own(counted)
        else:
            raise _Malformed
        self._ended()

    def _ended(self) -> None:
        """Note that a value is complete: its container expects one element less."""
        if self._open:
            self._open[-1] -= 1

    def _text(self, found: re.Match[bytes], *, at_key: bool) -> None:
        kind, size, begin = found[1], int(found[2]), found.end()
        if kind == b"S":
            text, end = self._unescaped(begin, size)
        else:
            end = begin + size
            text = self._data[begin:end]
        self._at = end
        self._expect(b'";')
        if at_key or kind == b"E":
            return
        new = changed(text, self._change, self._nested + 1)
        if new != text:
            self._replace(found.start(), self._at, b's:%d:"%b";' % (len(new), new))

    def _own(self, counted: re.Match[bytes]) -> None:
        """Read an object in its own format (`C:`)."""
        begin = counted.end()
        end = begin + int(counted[1])
        self._at = end
        self._expect(b"}")
        own = self._data[begin:end]
        if self._nested == MOST_NESTED:
            return
        try:
            new = _Scanner(own, self._change, self._nested + 1).all()
        except _Malformed:
            return
        if new != own:
            self._replace(counted.start(), self._at, b'":%d:{%b}' % (len(new), new))

    def _unescaped(self, begin: int, size: int) -> tuple[bytes, int]:
        """A text of so many bytes, some of them as a backslash and two digits, and where it ends."""
        text, at = bytearray(), begin
        while len(text) < size:
            found = _ESCAPED.match(self._data, at)
            if found is None:
                text += self._data[at : at + 1]
                at += 1
            else:
                text += bytes.fromhex(found[1].decode())
                at = found.end()
            if at > len(self._data):
                raise _Malformed
        return bytes(text), at

    def _expect(self, word: bytes) -> None:
        if not self._data.startswith(word, self._at):
            raise _Malformed
        self._at += len(word)

    def _replace(self, begin: int, end: int, new: bytes) -> None:
        self._out += memoryview(self._data)[self._kept : begin]
        self._out += new
        self._kept = end
