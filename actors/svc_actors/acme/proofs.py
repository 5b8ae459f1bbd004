"""The proofs of control over a name that an authority asks for (RFC 8555, section 8), and the answers to http-01.

For http-01 (8.3) the authority requests a token over plain HTTP from the name that the certificate is for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from svc_actors.acme.keys import base64url
from svc_actors.acme.messages import ChallengeType

CHALLENGE_PATH: Final = "/.well-known/acme-challenge/"


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


class Http01:
    """Answers to open challenges. The server that listens where the authority asks reads them from here."""

    type: Final = ChallengeType.HTTP_01

    def __init__(self) -> None:
        self._proofs: dict[str, Mapping[str, str]] = {}

    async def offer(self, certificate: str, proofs: Sequence[Proof]) -> None:
        """Answer requests for these tokens with their proofs, and no others for this certificate."""
        self._proofs[certificate] = {proof.token: proof.text for proof in proofs}

    async def withdraw(self, certificate: str) -> None:
        self._proofs.pop(certificate, None)

    def proof(self, token: str) -> str | None:
        return next((proofs[token] for proofs in self._proofs.values() if token in proofs), None)
