"""Why an authority refused a name: what the name resolves to, what it should resolve to, and who can change that.

Authorities describe what their servers saw, for people who run servers. The owner of a site needs the record to add and
the place to add it at. So the name is looked up here; the authority's own words stay at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from svc_actors.acme import AcmeError, ChallengeType, Refused
from svc_actors.certificates.left_out import Refusal, RefusedName
from svc_actors.panel.certificates.proofs import NOT_SHOWN
from svc_actors.panel.dns.pointing import Addresses, foreign, in_words, needed_records, no_domain
from svc_actors.panel.dns.proving import zone_of
from svc_actors.panel.sites.names import may_be_public
from svc_common.errors import ServiceError
from svc_webhost.delegation import DelegationError, RememberedDelegations
from svc_webhost.knot import Authority
from svc_webhost.name_addresses import AddressesUnknown, NameAddresses

_OF_ADDRESSES: Final = ("dns", "connection", "unauthorized", "tls", "incorrectResponse", "")
"""Kinds of problems that a wrong address explains (RFC 8555, section 6.7)."""


@dataclass(frozen=True)
class Reasons:
    """`addresses`: where sites are reached, as far as this server knows. `authority`: the name servers of its zones."""

    look_up: NameAddresses
    delegations: RememberedDelegations
    authority: Authority
    addresses: Callable[[], Addresses]

    async def explain(
        self, site: str, zones: Sequence[str], challenge: ChallengeType, name: str, problem: AcmeError
    ) -> Refusal:
        """`site` is its domain, `zones` are those of its names."""
        zone = _zone(name, zones)
        kind = problem.kind if isinstance(problem, Refused) else "rateLimited"
        nameservers = await self._nameservers(zone)
        found: tuple[str, ...] = ()
        if kind == NOT_SHOWN:
            return Refusal(name, f"{name} was not proven by DNS. {problem}", nameservers or ())
        if challenge is ChallengeType.DNS_01 and kind != "caa":
            found = nameservers or ()
            why = f"{name} was not proven by DNS: {self._delegated(zone, nameservers)}."
        elif kind == "caa":
            why = (
                f"A CAA record forbids this authority to certify {name}: add one that allows it, or remove that one. "
                f"{self._place(zone, nameservers, f'`svc dns list {site}` shows its records')}"
            )
        elif kind in _OF_ADDRESSES:
            known = await self._found(name)
            found = known or ()
            why = self._resolved(name, known)
            if known is None or not known or self._foreign(known):
                why += f" {self._place(zone, nameservers, f'`svc dns point {site}` changes it')}"
        else:
            return Refusal(name, f"The authority refuses {name}: {problem}")
        return Refusal(name, f"{why} The authority says: {problem}", found)

    async def worth_another_try(self, challenge: ChallengeType, zones: Sequence[str], left: RefusedName) -> bool:
        """Whether a refused name now leads to this server, or to another place than when it was refused."""
        if challenge is ChallengeType.DNS_01:
            found = await self._nameservers(_zone(left.name, zones)) or ()
            here = self._is_ours(found)
        else:
            found = await self._found(left.name) or ()
            here = not self._foreign(found)
        return bool(found) and (here or set(found) != set(left.found))

    async def _found(self, name: str) -> tuple[str, ...] | None:
        """The addresses of a name, none if it has no record; None if its name servers do not answer."""
        try:
            return tuple(await self.look_up(name))
        except AddressesUnknown:
            return None

    def _foreign(self, found: Sequence[str]) -> list[str]:
        return foreign(found, self.addresses())

    def _resolved(self, name: str, found: tuple[str, ...] | None) -> str:
        needed = needed_records(self.addresses())
        if found is None:
            return f"The name servers of {name} do not answer."
        if not found and not may_be_public(name):
            return f"{name} has no address: {no_domain(name)}, and public authorities certify no name below it."
        if not found:
            return f"{name} has no address: it needs {needed}."
        own, others = self.addresses(), self._foreign(found)
        seen = in_words(found, own)
        if not others:
            return f"{name} resolves to this server ({seen}), whose port 80 has to be open to the internet."
        shown = f"{name} resolves to {seen}"
        if len(others) < len(found):
            return f"{shown}, of which {in_words(others, own)} is not this server: it needs {needed}, and no others."
        return f"{shown}, which is not this server: it needs {needed}."

    def _delegated(self, zone: str, nameservers: Sequence[str] | None) -> str:
        expected, entry = " and ".join(self.authority.nameservers), "at the registrar, enter"
        if nameservers is None:
            return f"the parent of its zone {zone} does not answer, which has to delegate it to {expected}"
        if not nameservers:
            return f"its zone {zone} is delegated to no name server: {entry} {expected} as its name servers"
        if not self._is_ours(nameservers):
            shown = ", ".join(nameservers)
            return f"its zone {zone} is delegated to {shown}: {entry} only {expected} as its name servers"
        return f"its zone {zone} is delegated to this server, where the authority did not find the proof"

    def _place(self, zone: str, nameservers: Sequence[str] | None, here: str) -> str:
        """A sentence that says who can change the records."""
        if nameservers is None:
            return f"The records are changed where the zone {zone} is hosted."
        if not nameservers:
            return f"{zone} is delegated to no name server, which its registrar can change."
        if self._is_ours(nameservers):
            return f"The zone {zone} is on this server: {here}."
        return f"The records are changed where the zone {zone} is hosted, at {', '.join(nameservers)}."

    def _is_ours(self, nameservers: Sequence[str]) -> bool:
        return set(nameservers) <= set(self.authority.nameservers)

    async def _nameservers(self, zone: str) -> tuple[str, ...] | None:
        """The zone's name servers; None if the parent does not answer."""
        try:
            return tuple(sorted(await self.delegations.nameservers(zone)))
        except DelegationError:
            return None


def _zone(name: str, zones: Sequence[str]) -> str:
    bare = name.removeprefix("*.")
    try:
        return zone_of(bare, zones)
    except ServiceError:
        return bare  # The site has lost the name since the order.
