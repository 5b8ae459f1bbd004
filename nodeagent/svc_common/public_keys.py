"""Parses SSH public keys (RFC 4253, section 6.6; OpenSSH's one-line form).

Invariant: `parse_public_key` returns one well-formed key line without options, which can be written to an
authorized_keys file as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from svc_common.errors import wrong_field

_KINDS = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)


def parse_public_key(line: str, *, field: str = "public_key") -> tuple[str, str]:
    """The key line to store, and its fingerprint. Raises `invalid`, about the request's `field`, for anything but one
    public key of a known kind."""
    parts = line.strip().split(None, 2)
    if len(parts) < 2 or parts[0] not in _KINDS or any(ord(c) < 0x20 or ord(c) == 0x7F for c in line.strip()):
        raise wrong_field(field, "must be one line of the form `ssh-ed25519 AAAA... comment`")
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except binascii.Error:
        raise wrong_field(field, "the key's base64 is damaged") from None
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != parts[0].encode() or len(blob) <= 4 + length:
        raise wrong_field(field, "the key is not of the kind that it says, or is cut off")
    return " ".join(parts), key_fingerprint(parts[1])


def key_fingerprint(encoded: str) -> str:
    """The fingerprint of a key in base64, as ssh-keygen prints it: `SHA256:` and base64 without padding."""
    digest = hashlib.sha256(base64.b64decode(encoded)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
