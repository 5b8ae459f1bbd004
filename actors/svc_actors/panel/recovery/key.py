"""The recovery key: an administrator keeps it elsewhere, and nothing else opens the manifests of a lost server.

The panel writes manifests without having the recovery key. A data key encrypts them, and every manifest contains this
data key wrapped: sealed under a key that scrypt derives from the recovery key. The panel keeps the data key sealed
under its own sealing key, which is lost with the server.

Rejected: encrypting manifests with the recovery key itself. The panel writes one after each change, so it would have to
keep the recovery key, or ask for it each time.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from pydantic import BaseModel, ConfigDict, Field

from svc_actors.sealing import CannotUnseal, Sealer

_BYTES: Final = 20
"""160 random bits. The secret is strong by itself, so scrypt need not make up for a weak one."""
_GROUP: Final = 4
# The binary logarithms of scrypt's N. With r=8, scrypt takes 1 KiB * N of memory: 32 MiB with this cost.
_COST: Final = 15
_MOST_COST: Final = 17
"""128 MiB of memory: a forged manifest cannot make this server use more."""
_PURPOSE: Final = "recovery data key"


class WrongKey(Exception):  # noqa: N818 - named for what it says
    """The data key was wrapped with another recovery key."""


class WrappedKey(BaseModel):
    """The data key, readable with the recovery key. All of this may be public. `cost` is the logarithm of scrypt's
    N."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cost: int = Field(ge=1, le=_MOST_COST)
    salt: str = Field(pattern="^[0-9a-f]{32}$")
    sealed: str = Field(pattern="^[0-9a-f]+$", max_length=256)

    def opened(self, recovery_key: str) -> bytes:
        """The data key. Raises `WrongKey`."""
        try:
            return _sealer(recovery_key, bytes.fromhex(self.salt), self.cost).unseal(
                bytes.fromhex(self.sealed), _PURPOSE
            )
        except (CannotUnseal, ValueError) as error:
            raise WrongKey from error


@dataclass(frozen=True)
class NewKey:
    """`recovery_key` is shown once, and stored nowhere."""

    recovery_key: str
    data_key: bytes
    wrapped: WrappedKey

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.data_key)


def new_key() -> NewKey:
    text = base64.b32encode(secrets.token_bytes(_BYTES)).decode()
    recovery_key = "-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP))
    data_key, salt = secrets.token_bytes(32), secrets.token_bytes(16)
    sealed = _sealer(recovery_key, salt, _COST).seal(data_key, _PURPOSE)
    return NewKey(recovery_key, data_key, WrappedKey(cost=_COST, salt=salt.hex(), sealed=sealed.hex()))


def fingerprint_of(data_key: bytes) -> str:
    """A fingerprint of the key, which distinguishes manifests of different keys. It is public: a tag of each
    manifest."""
    return hashlib.sha256(b"svc recovery\0" + data_key).hexdigest()[:16]


def _sealer(recovery_key: str, salt: bytes, cost: int) -> Sealer:
    # People may type the key in upper or lower case, with or without hyphens and spaces.
    typed = "".join(recovery_key.upper().replace("-", "").split())
    return Sealer(Scrypt(salt, 32, n=1 << cost, r=8, p=1).derive(typed.encode()))
