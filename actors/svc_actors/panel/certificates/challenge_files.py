"""Answers to ACME challenges as files that the web server serves for every site (RFC 8555, section 8.3).

The files stay when the core ends: an authority that looks for the answer while the core is down still gets it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from svc_actors.acme import Http01, Proof, Refused

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""A token is in base64url, and becomes a file's name."""


class ChallengeFiles(Http01):
    """The web server can read `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._tokens: dict[str, frozenset[str]] = {}

    def clear(self) -> None:
        """Remove the files that an earlier core has left. Call it before anything is offered."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()

    async def offer(self, certificate: str, proofs: Sequence[Proof]) -> None:
        """Raises `Refused` for a token in a form that no authority uses."""
        if wrong := [proof.token for proof in proofs if not _TOKEN.fullmatch(proof.token)]:
            raise Refused(f"The authority's token {wrong[0]!r:.60} is not of the form that RFC 8555 has.")
        await super().offer(certificate, proofs)
        for proof in proofs:
            file = self._folder / proof.token
            file.write_text(proof.text)
            file.chmod(0o644)
        tokens = frozenset(proof.token for proof in proofs)
        self._remove(self._tokens.get(certificate, frozenset()) - tokens)
        self._tokens[certificate] = tokens

    async def withdraw(self, certificate: str) -> None:
        await super().withdraw(certificate)
        self._remove(self._tokens.pop(certificate, frozenset()))

    def _remove(self, tokens: frozenset[str]) -> None:
        for token in tokens:
            (self._folder / token).unlink(missing_ok=True)
