"""Texts inside of data that PHP has serialised (serialize()), changed byte by byte: lengths follow, nothing is built.

Values are never made of it: an object of a class would run its code. A text may be such data again, as WordPress stores
options that were serialised twice; it is changed in the same way. Keys of arrays and names of properties stay, as does
what an object has written itself (C:), unless that is such data as well. Pure functions, of the standard library alone.

The grammar, in bytes (`n` is a number of bytes, or of elements):

    N;  b:0;  i:-1;  d:0.5;  r:2;  R:2;  s:n:"text";  S:n:"\\74ext";  E:n:"Class:Case";
    a:n:{key value ...}  O:n:"Class":n:{key value ...}  C:n:"Class":n:{anything}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MOST_NESTED: Final = 16
"""So often is a text such data inside of a text; deeper ones stay as they are."""
_ATOM: Final = re.compile(rb"N;|b:[01];|[irR]:[+-]?[0-9]+;|d:[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|INF|NAN);")
_SIZED: Final = re.compile(rb'([sSE]):([0-9]{1,12}):"')
_ARRAY: Final = re.compile(rb"a:([0-9]{1,12}):\{")
_OBJECT: Final = re.compile(rb'([OC]):([0-9]{1,6}):"')
_COUNT: Final = re.compile(rb'":([0-9]{1,12}):\{')
_BEGINS: Final = re.compile(rb'(?:[sSE]:[0-9]+:"|a:[0-9]+:\{|[OC]:[0-9]+:")')
_ESCAPED: Final = re.compile(rb"\\([0-9a-fA-F]{2})")

Change = Callable[[bytes], bytes]


class _Malformed(Exception):  # noqa: N818 - it never leaves this module
    """It is none of PHP's, or not whole."""


def changed(value: bytes, change: Change, nested: int = 0) -> bytes:
    """The value with `change` done to it: to its texts where it is serialised data, else to all of it. What begins as
    such data and is none, say since it was cut off, stays as it is: no length in it could be trusted."""
    if nested > MOST_NESTED:
        return value
    if not is_like_serialized(value):
        return change(value)
    try:
        return _Scanner(value, change, nested).all()
    except _Malformed:
        return value


def is_like_serialized(value: bytes) -> bool:
    """It begins as a text, an array or an object of PHP's does."""
    return _BEGINS.match(value) is not None


class _Scanner:
    """Reads once from the front to the end, without recursion but for texts in texts: arrays may be as deep as they
    are long."""

    def __init__(self, data: bytes, change: Change, nested: int) -> None:
        self._data = data
        self._change = change
        self._nested = nested
        self._at = 0
        self._kept = 0
        """What is before it was written."""
        self._out = bytearray()
        self._open: list[int] = []
        """Of each array and object whose elements are being read: keys and values that are still to come."""

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
        """A value, or the beginning of one that has elements."""
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
        """A whole value: one element less is to come of what it is in."""
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
        """What an object has written as it likes."""
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
        """A text of so many bytes, some of them written as a backslash and two digits, and where it ends."""
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
