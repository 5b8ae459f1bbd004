"""http-01 (RFC 8555, 8.3): the authority asks for a token at the name that it is to vouch for, over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from svc_actors.acme.messages import ChallengeType
from svc_actors.acme.proofs import Proof

CHALLENGE_PATH: Final = "/.well-known/acme-challenge/"


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
