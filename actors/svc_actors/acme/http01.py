"""http-01 (RFC 8555, 8.3): the authority asks for a token at the name that it is to vouch for, over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CHALLENGE_PATH: Final = "/.well-known/acme-challenge/"


class Http01:
    """The answers that are given while challenges are under way, by whatever listens where the authority asks."""

    def __init__(self) -> None:
        self._proofs: dict[str, Mapping[str, str]] = {}

    def offer(self, certificate: str, proofs: Mapping[str, str]) -> None:
        """Answer these tokens, each with its proof, and no others for this certificate."""
        self._proofs[certificate] = dict(proofs)

    def withdraw(self, certificate: str) -> None:
        self._proofs.pop(certificate, None)

    def proof(self, token: str) -> str | None:
        return next((proofs[token] for proofs in self._proofs.values() if token in proofs), None)
