"""Answers to ACME challenges (RFC 8555, section 8): http-01 as files that the web server serves for every site, dns-01
in the zones of a site.

The files stay when the core ends: an authority that looks for the answer while the core is down still gets it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from svc_actors.acme import AcmeError, ChallengeType, Http01, NamesRefused, Proof, Refused
from svc_actors.panel.certificates.names import SiteNames
from svc_actors.panel.dns.proving import PREFIX, Proving, zone_of
from svc_actors.runtime import DomainError
from svc_common.errors import ErrorCode, ServiceError

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""A token is in base64url, and becomes a file's name."""

NOT_SHOWN: Final = "notShown"
"""The kind of a refusal of our own: nobody would find the proof, so the authority was not asked."""


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


class _Shown(NamedTuple):
    zone: str
    record: str
    text: str


class ZoneProofs:
    """`names` returns the site's current names; `owner_id` is its owner."""

    type: Final = ChallengeType.DNS_01

    def __init__(self, proving: Proving, owner_id: UUID, names: Callable[[], Awaitable[SiteNames]]) -> None:
        self._proving = proving
        self._owner_id = owner_id
        self._names = names
        self._shown: set[_Shown] = set()

    async def offer(self, certificate: str, proofs: Sequence[Proof]) -> None:
        """A name and its wildcard have a proof each, both at the same DNS name. Raises `NamesRefused` for the names of
        zones that this server is not asked for."""
        refused: dict[str, AcmeError] = {}
        try:
            zones = (await self._names()).zones
            wanted = {_Shown(zone_of(proof.name, zones), f"{PREFIX}{proof.name}", proof.digest) for proof in proofs}
            await self._remove(self._shown - wanted)
            new = wanted - self._shown
            # Remembered before the proofs are shown, so that they are removed even if only some of them could be shown.
            self._shown = wanted
            for zone, texts in _by_zone(new).items():
                refused |= await self._show(zone, texts)
        except ServiceError as error:
            raise AcmeError(f"{error.message} {error.hint or ''}".rstrip()) from error
        except DomainError as error:
            raise AcmeError(f"The challenge records could not be written to the zone: {error}") from error
        if refused:
            raise NamesRefused(" ".join(dict.fromkeys(map(str, refused.values()))), refused)

    async def _show(self, zone: str, texts: Mapping[str, Sequence[str]]) -> dict[str, AcmeError]:
        """Show the proofs of one zone. Returns the reason if names of this zone cannot be proven; names of other zones
        still can be. Raises a failure that says nothing about the names, such as a name server that does not answer:
        the order then continues later."""
        try:
            await self._proving.show(self._owner_id, zone, texts)
        except ServiceError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            why = Refused(f"{error.message} {error.hint or ''}".rstrip(), kind=NOT_SHOWN)
            names = [record.removeprefix(PREFIX) for record in texts]
            return dict.fromkeys([*names, *(f"*.{name}" for name in names)], why)
        return {}

    async def withdraw(self, certificate: str) -> None:
        shown, self._shown = self._shown, set()
        await self._remove(shown)

    async def _remove(self, shown: set[_Shown]) -> None:
        for zone, proofs in _by_zone(shown).items():
            await self._proving.remove(zone, proofs)


def _by_zone(shown: Iterable[_Shown]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for each in sorted(shown):
        found.setdefault(each.zone, {}).setdefault(each.record, []).append(each.text)
    return found
