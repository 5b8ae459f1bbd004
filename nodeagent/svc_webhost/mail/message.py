"""Reads a message that a program of a site hands to sendmail, and makes it fit for SMTP (RFC 5321, RFC 5322).

It runs as the account of the site (`sendmail.py`), so that nothing with more rights ever parses what a site has
written. The standard library alone, without what is slow to import: `email`, `dataclasses`, `typing`.

Invariants of what `Draft.finished` returns:
- every line ends with CRLF, and there is no other CR, LF or NUL: what a filter of the site took for one line is one;
- it has Date, From and Message-ID, and neither Bcc nor Return-Path nor PHP's header of the script;
- a recipient is an address of plain ASCII with a domain, and occurs once.
"""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

MOST_BYTES: Final = 25 * 1024 * 1024
"""The most bytes of a message: as many as large providers accept."""
MOST_RECIPIENTS: Final = 1000
LONGEST_ADDRESS: Final = 254

_FIELD: Final = re.compile(rb"([!-9;-~]+)[ \t]*:")
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@"
    r"((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
)
_LONGEST_LOCAL: Final = 64
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\\.|[(),:;<>]|[^"\\(),:;<>]+|"', re.DOTALL)
_REMOVED: Final = frozenset({b"bcc", b"resent-bcc", b"return-path", b"x-php-originating-script"})
_RECIPIENTS: Final = (b"to", b"cc", b"bcc")
_PHP: Final = re.compile(r"(?:[0-9]+:)?(.*)", re.DOTALL)


class MessageError(Exception):
    """The message cannot be sent; the text says why."""


class Finished:
    """A message for SMTP."""

    def __init__(self, content: bytes, from_domain: str) -> None:
        self.content = content
        self.from_domain = from_domain


class Draft:
    """A message as it was handed in, with its line ends made alike. `fields` has the name of each header, in lower
    case, and its lines; `named` the addresses of To, Cc and Bcc, as they are written there."""

    def __init__(self, fields: list[tuple[bytes, bytes]], body: bytes, named: list[str]) -> None:
        self.fields = fields
        self.body = body
        self.named = named

    @classmethod
    def parse(cls, raw: bytes) -> Draft:
        """Raises `MessageError` for a message that is too large."""
        if len(raw) > MOST_BYTES:
            raise MessageError(f"the message has more than {MOST_BYTES >> 20} MiB")
        # A lone CR may be part of a line that a program took from a visitor: it must not become a header of its own.
        head, body = _split(re.sub(rb"(?<!\r)\r*\n", b"\n", raw.replace(b"\0", b"")))
        fields = _fields(head.replace(b"\r", b" "))
        named = [_text(value) for name, value in fields if name in _RECIPIENTS]
        return cls(fields, body.replace(b"\r", b"\n").replace(b"\n", b"\r\n"), named)

    def recipients(self) -> list[str]:
        """The addresses of To, Cc and Bcc. Raises `MessageError` for text that is no address."""
        return unique(address for text in self.named for address in addresses(text))

    @property
    def php_script(self) -> str | None:
        """The name of the PHP file that called mail(): with mail.add_x_header PHP adds it to the message."""
        for name, value in self.fields:
            if name == b"x-php-originating-script":
                found = _PHP.fullmatch(_text(value).strip())
                return None if found is None or not found[1] else os.path.basename(found[1])
        return None

    def finished(self, domain: str, sender: str | None, full_name: str | None) -> Finished:
        """The message for SMTP. `domain` is the site's. `sender` and `full_name` form the header From if the message
        has none with an address."""
        kept = [(name, lines) for name, lines in self.fields if name not in _REMOVED]
        from_domain = None
        for name, value in kept:
            if name == b"from" and from_domain is None:
                from_domain = _domain_of_first(_text(value))
        added = []
        if from_domain is None:
            kept = [(name, lines) for name, lines in kept if name != b"from"]
            address = sender or f"noreply@{domain}"
            from_domain = address.rpartition("@")[2]
            added.append(f"From: {_phrase(full_name)}<{address}>" if full_name else f"From: {address}")
        there = {name for name, _ in kept}
        if b"date" not in there:
            added.append(time.strftime("Date: %a, %d %b %Y %H:%M:%S +0000", time.gmtime()))
        if b"message-id" not in there:
            added.append(f"Message-ID: <{os.urandom(16).hex()}@{from_domain}>")
        lines = [line.encode("utf-8", "surrogateescape") for line in added] + [lines for _, lines in kept]
        head = b"".join(line.replace(b"\n", b"\r\n") + b"\r\n" for line in lines)
        body = self.body if not self.body or self.body.endswith(b"\r\n") else self.body + b"\r\n"
        return Finished(head + b"\r\n" + body, from_domain.lower())


def addresses(text: str) -> list[str]:
    """The addresses of a list such as `Ada <ada@example.org>, bob@example.org`: with names, comments, groups. Raises
    `MessageError` for text that is no address."""
    found, part, angle, depth = [], "", None, 0
    for word in [*_TOKEN.findall(text), ","]:
        if depth or word == "(":
            depth += {"(": 1, ")": -1}.get(word, 0)
        elif word == "<" and angle is None:
            angle = ""
        elif word == ">" and angle is not None:
            part, angle = f"<{angle}", None
        elif angle is not None and word != ",":
            angle += word
        elif word in (",", ";"):
            if angle is not None:
                raise MessageError(f"{_shown(part + '<' + angle)} is not an address")
            if part.strip():
                found.append(address(part.removeprefix("<")))
            part = ""
        elif word == ":":
            # The name of a group.
            part = ""
        elif not part.startswith("<") and word != ">":
            part += word
        elif word.strip():
            raise MessageError(f"{_shown(part + word)} is not an address")
    if depth:
        raise MessageError(f"{_shown(text)} has a comment that does not end")
    return found


def address(text: str) -> str:
    """The address, with its domain in ASCII. Raises `MessageError`."""
    local, at, domain = text.strip().rpartition("@")
    if not domain.isascii():
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError:
            domain = ""
    result = f"{local}{at}{domain}"
    if len(result) > LONGEST_ADDRESS or len(local) > _LONGEST_LOCAL or _ADDRESS.fullmatch(result) is None:
        raise MessageError(f"{_shown(text)} is not an address")
    return result


def unique(recipients: Iterable[str]) -> list[str]:
    """The recipients without repetitions. Raises `MessageError` if there are too many."""
    result = list(dict.fromkeys(recipients))
    if len(result) > MOST_RECIPIENTS:
        raise MessageError(f"the message has more than {MOST_RECIPIENTS} recipients")
    return result


def _split(raw: bytes) -> tuple[bytes, bytes]:
    """The headers and the body. What does not look like a header starts the body, without an empty line before it."""
    if raw.startswith(b"From "):
        # The first line of a mailbox file.
        raw = raw.partition(b"\n")[2]
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        end = len(raw) if end < 0 else end
        if end == start:
            return raw[:start], raw[end + 1 :]
        if not (_FIELD.match(raw, start, end) or (start and raw[start : start + 1] in (b" ", b"\t"))):
            return raw[:start], raw[start:]
        start = end + 1
    return raw, b""


def _fields(head: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, list[bytes]]] = []
    for line in head.split(b"\n"):
        match = _FIELD.match(line)
        if line[:1] in (b" ", b"\t"):
            # An empty line that is folded would end the headers for some readers.
            if line.strip() and found:
                found[-1][1].append(line)
        elif match is not None:
            found.append((match[1].lower(), [line]))
    return [(name, b"\n".join(lines)) for name, lines in found]


def _text(lines: bytes) -> str:
    """The value of a header."""
    return lines.partition(b":")[2].replace(b"\n", b" ").decode("utf-8", "surrogateescape")


def _domain_of_first(text: str) -> str | None:
    try:
        found = addresses(text)
    except MessageError:
        return None
    return found[0].rpartition("@")[2] if found else None


def _phrase(name: str) -> str:
    plain = re.sub(r'[\x00-\x1f\x7f"\\]', " ", name).strip()
    return f'"{plain}" ' if plain else ""


def _shown(text: str) -> str:
    return repr(text.strip()[:80].encode("ascii", "replace").decode())
