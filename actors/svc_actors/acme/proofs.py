"""The proofs of control over a name that an authority asks for (RFC 8555, section 8)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from svc_actors.acme.keys import base64url
from svc_actors.acme.messages import ChallengeType


@dataclass(frozen=True)
class Proof:
    """`name` is without `*.`: a wildcard is proven at the name that follows the `*.`. `text` is the key authorization
    of `token`, which http-01 shows."""

    name: str
    token: str
    text: str

    @property
    def digest(self) -> str:
        """The value of the dns-01 record."""
        return base64url(hashlib.sha256(self.text.encode()).digest())


class Challenges(Protocol):
    """Publishes the proofs of one challenge type where the authority looks for them."""

    @property
    def type(self) -> ChallengeType: ...

    async def offer(self, certificate: str, proofs: Sequence[Proof]) -> None:
        """Show these proofs, and no others, for this certificate. They are in place on return. Raises `AcmeError`."""
        ...

    async def withdraw(self, certificate: str) -> None:
        """Remove all proofs of this certificate."""
        ...
