"""Prepares a message for a DKIM signature (RFC 6376) in relaxed canonicalization, of header and body.

The panel's core signs, as it has the keys, but parses nothing of a tenant's. So a process with the tenant's own rights
computes here what a signature covers: the hash of the body, and the signed header fields in the form in which verifiers
hash them. To the core that form is opaque text of bounded length. A tenant who hands in something else gets a
signature that does not verify.

Invariants: standard library alone, without another module of this package; nothing is raised for any bytes. What cannot
be signed (no From or several, a header that is not one) has no signing data, and is sent unsigned.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

SIGNED: Final = frozenset(
    {
        "from",
        "sender",
        "reply-to",
        "to",
        "cc",
        "subject",
        "date",
        "message-id",
        "in-reply-to",
        "references",
        "mime-version",
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "list-id",
        "list-unsubscribe",
        "list-unsubscribe-post",
    }
)
"""The fields that are signed where they occur: those that RFC 6376 (5.4.1) names and that no relay writes itself."""
LONGEST_HEADERS: Final = 64 * 1024
"""Bytes of the signed fields: a thousand recipients in To. A longer header is not signed."""
MOST_FIELDS: Final = 64

_FIELD: Final = re.compile(rb"([!-9;-~]+):(.*)", re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t]+")


class SigningData:
    """`headers`: Base64 of the signed fields, relaxed, each with its CRLF. `names`: their names as the tag h= has them,
    separated by colons. `body_hash`: as the tag bh= has it."""

    def __init__(self, headers: str, names: str, body_hash: str) -> None:
        self.headers = headers
        self.names = names
        self.body_hash = body_hash

    def as_json(self) -> dict[str, str]:
        return {"headers": self.headers, "names": self.names, "body_hash": self.body_hash}


def signing_data(message: bytes) -> SigningData | None:
    """The signing data of a whole message with line ends CRLF or LF; None if the message cannot be signed."""
    head, body = _divided(message)
    fields = _fields(head)
    if fields is None or sum(name == "from" for name, _ in fields) != 1:
        return None
    # If several fields have the same name, the last one is signed first, because verifiers take them from the bottom
    # (5.4.2).
    signed = [(name, value) for name, value in reversed(fields) if name in SIGNED]
    signed.sort(key=lambda field: field[0] != "from")
    canonical = b"".join(b"%s:%s\r\n" % (name.encode(), value) for name, value in signed)
    if len(signed) > MOST_FIELDS or len(canonical) > LONGEST_HEADERS:
        return None
    # From is named once more than it occurs: a second one that is added on the way, which a mail program might show
    # instead, breaks the signature (8.15). While it is absent it counts as empty.
    names = ":".join([*(name for name, _ in signed), "from"])
    return SigningData(b64encode(canonical).decode(), names, b64encode(_body_hash(body)).decode())


def _divided(message: bytes) -> tuple[bytes, memoryview]:
    """Header and body, divided at the first empty line."""
    if message.startswith((b"\n", b"\r\n")):
        return b"", memoryview(b"")
    end = re.search(rb"\n\r?\n", message)
    if end is None:
        return message, memoryview(b"")
    return message[: end.start() + 1], memoryview(message)[end.end() :]


def _fields(head: bytes) -> list[tuple[str, bytes]] | None:
    """Names in lower case with relaxed values (3.4.2), in their order; None if a line is not part of a field."""
    found: list[list[bytes]] = []
    for line in re.split(rb"\r?\n", head.removesuffix(b"\n").removesuffix(b"\r")):
        if line[:1] in (b" ", b"\t"):
            if not found:
                return None
            found[-1].append(line)
        else:
            found.append([line])
    fields = []
    for lines in found:
        field = _FIELD.fullmatch(b"".join(lines))
        if field is None:
            return None
        fields.append((field[1].decode("ascii").lower(), _SPACE.sub(b" ", field[2]).strip(b" ")))
    return fields


def _body_hash(body: memoryview) -> bytes:
    """The SHA-256 of the relaxed body (3.4.4): white space within lines is reduced, and at their ends removed; empty
    lines at the end of the body do not count."""
    digest = sha256()
    empty = 0
    for line in _lines(body):
        relaxed = _SPACE.sub(b" ", line.rstrip(b" \t"))
        if not relaxed:
            empty += 1
            continue
        digest.update(b"\r\n" * empty + relaxed + b"\r\n")
        empty = 0
    return digest.digest()


def _lines(body: memoryview) -> Iterator[bytes]:
    """Line by line: a mail of 25 MiB as a list of lines would take several times its size."""
    at = 0
    for end in re.finditer(rb"\r?\n", body):
        yield bytes(body[at : end.start()])
        at = end.end()
    if at < len(body):
        yield bytes(body[at:])
