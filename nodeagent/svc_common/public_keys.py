"""Parses SSH public keys (RFC 4253, section 6.6; RFC 5656; RFC 8709; OpenSSH's one-line form and PROTOCOL.u2f).

Invariant: `parse_public_key` returns one well-formed key line without options, which can be written to an
authorized_keys file as it is, and which OpenSSH accepts: a key that it ignores would lock its owner out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from svc_common.characters import CONTROLS, TURNING
from svc_common.errors import wrong_field

_ED25519_BYTES: Final = 32
_RSA_BITS: Final = range(1024, 16_384 + 1)
"""The lengths of RSA keys, in bits, that OpenSSH accepts."""
_NOT_ONE_LINE: Final = re.compile(f"[{CONTROLS}{TURNING}]")
"""Characters that no name may contain, either. Readers of YAML and of text take some of these as the end of a line."""

_Check = Callable[[Sequence[bytes]], bool]
"""Checks the fields that follow the name of the key's kind."""


def parse_public_key(line: str, *, field: str = "public_key") -> tuple[str, str]:
    """The key line to store, and its fingerprint. Raises `invalid`, about the request's `field`, for anything but one
    public key of a known kind."""
    parts = line.strip().split(None, 2)
    if len(parts) < 2 or parts[0] not in _KINDS or _NOT_ONE_LINE.search(line.strip()):
        raise wrong_field(field, "must be one line of the form `ssh-ed25519 AAAA... comment`")
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except binascii.Error:
        raise wrong_field(field, "the key's base64 is damaged") from None
    if not _is_whole(parts[0], blob):
        raise wrong_field(field, "the key is cut off, or is no key of the kind and size that it says")
    return " ".join(parts), key_fingerprint(parts[1])


def key_fingerprint(encoded: str) -> str:
    """The fingerprint of a key in base64, as ssh-keygen prints it: `SHA256:` and base64 without padding."""
    digest = hashlib.sha256(base64.b64decode(encoded)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _is_whole(kind: str, blob: bytes) -> bool:
    """Whether the blob has exactly the fields of this kind, each of a possible size."""
    try:
        name, *fields = _fields(blob)
        return name == kind.encode() and _KINDS[kind](fields)
    except ValueError:
        return False


def _fields(blob: bytes) -> Iterator[bytes]:
    """The blob's strings, each with its length in four bytes before it. Raises `ValueError` if the last is cut off."""
    at = 0
    while at < len(blob):
        start = at + 4
        at = start + int.from_bytes(blob[at:start], "big")
        if at > len(blob):
            raise ValueError("the last string is cut off")
        yield blob[start:at]


def _is_ed25519(fields: Sequence[bytes]) -> bool:
    return [len(each) for each in fields] == [_ED25519_BYTES]


def _is_rsa(fields: Sequence[bytes]) -> bool:
    exponent, modulus = (int.from_bytes(each, "big", signed=True) for each in fields)
    return exponent > 1 and exponent % 2 == 1 and modulus > 0 and modulus.bit_length() in _RSA_BITS


def _is_ecdsa(name: bytes, curve: ec.EllipticCurve) -> _Check:
    def check(fields: Sequence[bytes]) -> bool:
        named, point = fields
        # raises ValueError for a point that is not on the curve
        ec.EllipticCurvePublicKey.from_encoded_point(curve, point)
        return named == name and point[0] == 4  # OpenSSH takes uncompressed points alone

    return check


def _on_a_token(check: _Check) -> _Check:
    """The check for a security key: the fields of the plain kind, followed by the application that the key is for."""
    return lambda fields: len(fields) > 1 and check(fields[:-1])


_is_p256 = _is_ecdsa(b"nistp256", ec.SECP256R1())
_KINDS: Final[Mapping[str, _Check]] = {
    "ssh-ed25519": _is_ed25519,
    "ssh-rsa": _is_rsa,
    "ecdsa-sha2-nistp256": _is_p256,
    "ecdsa-sha2-nistp384": _is_ecdsa(b"nistp384", ec.SECP384R1()),
    "ecdsa-sha2-nistp521": _is_ecdsa(b"nistp521", ec.SECP521R1()),
    "sk-ssh-ed25519@openssh.com": _on_a_token(_is_ed25519),
    "sk-ecdsa-sha2-nistp256@openssh.com": _on_a_token(_is_p256),
}
