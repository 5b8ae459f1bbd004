"""Secrets at rest: sealed with AES-256-GCM under a key that is stored next to the data, never in the database.

The `purpose` is bound to what is sealed (as associated data), so a sealed value moved to another column does not open.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from svc_common.durable import sync_folder

_NONCE_BYTES = 12
_KEY_BYTES = 32


class CannotUnseal(Exception):  # noqa: N818 - named for what it says
    """The sealed value was made with another key or for another purpose, or was altered."""


class Sealer:
    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._marking_key = hmac.digest(key, b"marks", "sha256")

    @classmethod
    def from_file(cls, path: Path) -> Sealer:
        """Read the key, or create it on first use. It is complete and on disk before anything is sealed with it, even
        if another process creates one at the same time. Only its owner can read the file."""
        if not path.exists():
            _make_key(path)
        return cls(path.read_bytes())

    def mark(self, secret: bytes, purpose: str) -> bytes:
        """A keyed digest of 32 bytes, the same for the same secret and purpose. Without the key the secret cannot be
        guessed from it."""
        return hmac.digest(self._marking_key, purpose.encode() + b"\0" + secret, "sha256")

    def seal(self, secret: bytes, purpose: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, purpose.encode())

    def unseal(self, sealed: bytes, purpose: str) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
        except InvalidTag as error:
            raise CannotUnseal(f"what was sealed for {purpose!r} does not open with this key") from error


def _make_key(path: Path) -> None:
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        path.hardlink_to(new)
    except FileExistsError:
        return  # Another process has written its key first, so that key is used.
    finally:
        new.unlink()
    sync_folder(path.parent)
