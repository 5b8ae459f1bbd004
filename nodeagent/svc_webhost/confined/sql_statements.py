"""Splits a stream of SQL into statements, so that rules can change what defines something and leave the data alone.

A file may be far larger than memory, and most of it is rows. A statement that fills a table goes through as it comes;
any other is collected, and given to the rules as a whole. What is text to the engine (strings, quoted names, comments,
rows of COPY) never ends a statement and is never taken for one: Adminer writes line breaks of data as they are, so a
row may have a line that reads like a statement.

It makes no difference where blocks are cut: a token that may continue in the next block waits for it.

This module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

_LONGEST: Final = 4 << 20
"""The most bytes of a collected statement. A longer one defines nothing that a rule knows, and goes through."""
_AHEAD: Final = 4096
"""The bytes that decide what a token is: a line of the client's, a message, a tag."""


class Rules(Protocol):
    """Returns the replacement of each part of a dump; None leaves the part out."""

    def statement(self, text: bytes) -> bytes | None:
        """A statement, without its delimiter."""
        ...

    def line(self, text: bytes) -> bytes | None:
        """A line between statements that is for the client (`\\connect`), or a message of the program that wrote the
        file."""
        ...


@dataclass(frozen=True)
class _Text:
    """Text, in the engine's sense, that has started: the patterns of its continuation and of its end."""

    body: re.Pattern[bytes]
    end: re.Pattern[bytes]


def _text(body: bytes, end: bytes) -> _Text:
    return _Text(re.compile(_repeated(body), re.DOTALL), re.compile(end))


def _repeated(alternatives: bytes) -> bytes:
    """A pattern of any number of these alternatives, without backtracking. It is not written as `(?:...)*+`, because
    there Python 3.11.2 (Debian 12) consumes the matched part of an alternative that fails."""
    return rb"(?>(?:" + alternatives + rb")*)"


_LINE_COMMENT: Final = _text(rb"[^\n]++", rb"\n")
_COMMENT: Final = _text(rb"[^*]++|\*(?=[^/])", rb"\*/")
_NESTED: Final = _text(rb"[^*/]++|\*(?=[^/])|/(?=[^*])", rb"\*/|/\*")
"""A comment of PostgreSQL, in which others may start."""
_NAME: Final = _text(rb'[^"]++', rb'"')
_ESCAPED: Final = _text(rb"[^'\\]++|\\.", rb"'")
_MARIADB_QUOTES: Final = {b"'": _ESCAPED, b'"': _text(rb'[^"\\]++|\\.', rb'"'), b"`": _text(rb"[^`]++", rb"`")}
_WITHOUT_ESCAPES: Final = {**_MARIADB_QUOTES, b"'": _text(rb"[^']++", rb"'"), b'"': _text(rb'[^"]++', rb'"')}
_ROWS: Final = _text(rb"[^\n]++|\n(?=.{4})(?!\\\.\r?\n)", rb"\n\\\.\r?\n")
_BLANKS: Final = re.compile(rb"(?:\s|\xef\xbb\xbf)++")
"""White space, and the byte order mark of UTF-8 that editors write at the start of a file."""


class Splitter:
    """The part that engines have in common. `delimiter` ends a statement; `fills` matches the start of one that has
    rows, `line` a line that is no statement, and `plain` what has neither quotes nor comments nor a delimiter."""

    delimiter = b";"
    fills: re.Pattern[bytes]
    line: re.Pattern[bytes]
    plain: re.Pattern[bytes]

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._rest, self._seen = b"", 0
        """Bytes that wait for more, after so many (one or none) that were yielded: a token may depend on the byte
        before it."""
        self._within: _Text | None = None
        self._level = 0
        """How deep a comment is nested; 1 for other text."""
        self._between = True
        """Whether no statement has started since the last one ended."""
        self._collected: list[bytes] | None = None
        self._size = 0

    def feed(self, block: bytes, *, last: bool = False) -> Iterator[bytes]:
        """Yields the part of the input so far that is to be run, without what depends on the next block."""
        text, at = self._rest + block, self._seen
        known = len(text) if last else len(text) - _AHEAD
        while at < known:
            if self._within is not None:
                end = self._text_end(text, at, self._within)
            elif self._between:
                if found := self.line.match(text, at):
                    yield self.take_line(found)
                    at = found.end()
                    continue
                end = self._before_statement(text, at)
            else:
                end = self._in_statement(text, at)
                if end == at and text.startswith(self.delimiter, at):
                    yield self._finished()
                    at += len(self.delimiter)
                    continue
            if end == at:
                break
            yield self._took(text[at:end])
            at = end
        if last:
            yield self._took(text[at:])
            if self._collected is not None:
                yield self._rules.statement(b"".join(self._collected)) or b""
        self._seen = min(at, 1)
        self._rest = text[at - self._seen :]

    def take_line(self, match: re.Match[bytes]) -> bytes:
        return self._rules.line(match[0]) or b""

    def token(self, text: bytes, at: int) -> tuple[int, _Text | None]:
        """The end of the token at `at`, and the text that it starts."""
        raise NotImplementedError

    def ended(self, statement: bytes) -> _Text | None:
        """The pattern of what may follow the delimiter of a collected statement and is not a statement."""
        return None

    def _text_end(self, text: bytes, at: int, within: _Text) -> int:
        found = within.body.match(text, at)
        assert found is not None
        closing = within.end.match(text, found.end())
        if closing is None:
            return found.end()
        self._level += 1 if within is _NESTED and closing[0] == b"/*" else -1
        if self._level == 0:
            self._within = None
        return closing.end()

    def _before_statement(self, text: bytes, at: int) -> int:
        if blanks := _BLANKS.match(text, at):
            return blanks.end()
        if text.startswith(self.delimiter, at):
            return at + len(self.delimiter)
        end, begun = self.token(text, at)
        if begun in (_COMMENT, _NESTED, _LINE_COMMENT):
            self._enter(begun)
            return end
        self._between = False
        self._collected = None if self.fills.match(text, at) else []
        self._size = 0
        return self._in_statement(text, at)

    def _in_statement(self, text: bytes, at: int) -> int:
        found = self.plain.match(text, at)
        assert found is not None
        if found.end() > at or text.startswith(self.delimiter, at):
            return found.end()
        end, begun = self.token(text, at)
        self._enter(begun)
        return end

    def _enter(self, begun: _Text | None) -> None:
        self._within, self._level = begun, 1

    def _took(self, piece: bytes) -> bytes:
        if self._between or self._collected is None:
            return piece
        self._collected.append(piece)
        self._size += len(piece)
        if self._size <= _LONGEST:
            return b""
        piece, self._collected = b"".join(self._collected), None
        return piece

    def _finished(self) -> bytes:
        self._between = True
        if self._collected is None:
            return self.delimiter
        statement, self._collected = b"".join(self._collected), None
        changed = self._rules.statement(statement)
        self._enter(self.ended(statement))
        return b"" if changed is None else changed + self.delimiter


class MariaDbSplitter(Splitter):
    """Comments such as `/*!50013 ... */` are executed, so what is in them counts as statements."""

    fills = re.compile(rb"(?:/\*M?!\d*\s*)?(?:INSERT|REPLACE)\b", re.IGNORECASE)
    # The messages of a dump program whose errors went into the file as well (2>&1).
    line = re.compile(
        rb"(?:delimiter[ \t]++(?P<delimiter>\S{1,16}+)|(?:(?:mysqldump|mariadb-dump|mysql|mariadb)(?:\.exe)?|warning):)"
        rb"[^\n]*+\n",
        re.IGNORECASE,
    )
    plain = re.compile(b"")
    _EXECUTED: Final = re.compile(rb"/\*M?!\d*")

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._escapes = True
        self._separate(b";")

    def set_escapes(self, *, escapes: bool) -> None:
        """Whether a backslash escapes what follows it in a string, in the statements that come next."""
        self._escapes = escapes
        self._separate(self.delimiter)

    def take_line(self, match: re.Match[bytes]) -> bytes:
        if match["delimiter"] is None:
            return super().take_line(match)
        self._separate(match["delimiter"])
        return match[0]

    def token(self, text: bytes, at: int) -> tuple[int, _Text | None]:
        sign = text[at : at + 1]
        if sign in _MARIADB_QUOTES:
            return at + 1, (_MARIADB_QUOTES if self._escapes else _WITHOUT_ESCAPES)[sign]
        if sign == b"#" or (text.startswith(b"--", at) and text[at + 2 : at + 3] <= b" "):
            return at + 1, _LINE_COMMENT
        if executed := self._EXECUTED.match(text, at):
            return executed.end(), None
        if text.startswith(b"/*", at):
            return at + 2, _COMMENT
        return at + 1, None

    def _separate(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self.plain = re.compile(
            _repeated(
                rb"[^'\"`#/\-"
                + re.escape(delimiter[:1])
                + rb"]++"
                + (
                    rb"|'(?>(?:[^'\\]++|\\.)*)'|\"(?>(?:[^\"\\]++|\\.)*)\"|`[^`]*+`"
                    if self._escapes
                    else rb"|'[^']*+'|\"[^\"]*+\"|`[^`]*+`"
                )
                + (b"" if delimiter[:1] in b"-/" else rb"|-(?=[^-])|/(?=[^*])")
            ),
            re.DOTALL,
        )


class PostgresSplitter(Splitter):
    """The body of a function in standard SQL (BEGIN ATOMIC) is split as well, which does no harm: no statement that may
    stand there is changed by a rule."""

    fills = re.compile(rb"INSERT\b", re.IGNORECASE)
    line = re.compile(rb"\\[a-z]++(?:[ \t][^\n]*+)?\n")
    plain = re.compile(
        _repeated(rb"[^'\"$/\-;eE]++|'[^']*+'|\"[^\"]*+\"|-(?=[^-])|/(?=[^*])|[eE](?=[^'])|(?<=[A-Za-z0-9_])\$")
    )
    _DOLLAR: Final = re.compile(rb"\$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$")
    _COPIES: Final = re.compile(rb"COPY\s.*\sFROM\s+stdin\b", re.IGNORECASE | re.DOTALL)
    _QUOTED: Final = _text(rb"[^']++", rb"'")
    # The letter must not be the end of a name: date'2026-11-30' has no escapes.
    _ESCAPES: Final = re.compile(rb"(?<![A-Za-z0-9_\x80-\xff])[eE]'")

    def token(self, text: bytes, at: int) -> tuple[int, _Text | None]:
        if self._ESCAPES.match(text, at):
            return at + 2, _ESCAPED
        if text.startswith(b"'", at):
            return at + 1, self._QUOTED
        if text.startswith(b'"', at):
            return at + 1, _NAME
        if text.startswith(b"--", at):
            return at + 2, _LINE_COMMENT
        if text.startswith(b"/*", at):
            return at + 2, _NESTED
        if tag := self._DOLLAR.match(text, at):
            sign = re.escape(tag[0])
            return tag.end(), _text(rb"[^$]++|(?!%s)\$(?=.{%d})" % (sign, len(tag[0]) - 1), sign)
        return at + 1, None

    def ended(self, statement: bytes) -> _Text | None:
        return _ROWS if self._COPIES.match(statement) else None
