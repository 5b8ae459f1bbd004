"""Answers to an authority's challenges as files that the web server gives out for every site (RFC 8555, section 8.3).

The files outlive the core: an authority that looks while it is away gets its answer all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from svc_actors.acme import Http01, Refused

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""base64url: it becomes the name of a file."""


class ChallengeFiles(Http01):
    """`folder` is open to the web server."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._tokens: dict[str, frozenset[str]] = {}

    def clear(self) -> None:
        """Remove what a core before this one left. Before anything is offered."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()

    def offer(self, certificate: str, proofs: Mapping[str, str]) -> None:
        """Raises `Refused` for a token that no authority gives out."""
        if wrong := [token for token in proofs if not _TOKEN.fullmatch(token)]:
            raise Refused(f"The authority's token {wrong[0]!r:.60} is not of the form that RFC 8555 has.")
        super().offer(certificate, proofs)
        for token, proof in proofs.items():
            file = self._folder / token
            file.write_text(proof)
            file.chmod(0o644)
        self._remove(self._tokens.get(certificate, frozenset()) - proofs.keys())
        self._tokens[certificate] = frozenset(proofs)

    def withdraw(self, certificate: str) -> None:
        super().withdraw(certificate)
        self._remove(self._tokens.pop(certificate, frozenset()))

    def _remove(self, tokens: frozenset[str]) -> None:
        for token in tokens:
            (self._folder / token).unlink(missing_ok=True)
