"""Secrets at rest: sealed with AES-256-GCM under a key that is kept beside the data, never in the database.

The `purpose` is bound to what is sealed (as associated data), so a sealed value moved to another column does not open.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
_KEY_BYTES = 32


class CannotUnseal(Exception):
    """The sealed value was made with another key or for another purpose, or was altered."""


class Sealer:
    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._marking_key = hmac.digest(key, b"marks", "sha256")

    @classmethod
    def from_file(cls, path: Path) -> Sealer:
        """Read the key, or make it on first use. The file is readable by its owner alone."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(path.read_bytes())
        key = secrets.token_bytes(_KEY_BYTES)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        return cls(key)

    def mark(self, secret: bytes, purpose: str) -> bytes:
        """The same 32 bytes for the same secret and purpose, from which nobody without the key can guess the secret."""
        return hmac.digest(self._marking_key, purpose.encode() + b"\0" + secret, "sha256")

    def seal(self, secret: bytes, purpose: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, purpose.encode())

    def unseal(self, sealed: bytes, purpose: str) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
        except InvalidTag as error:
            raise CannotUnseal(f"what was sealed for {purpose!r} does not open with this key") from error
