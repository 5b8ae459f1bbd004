"""Finds out to which name servers a domain is delegated, by asking its parent's name servers, as every resolver does.

A resolver's answer about the domain itself would not do: it may come from this server. Only the parent's answer decides
who is asked. Private addresses are not asked, whatever a name says: domains are customers' input.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import inf
from typing import Final, Protocol

import dns.asyncquery
import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.resolver
import trio

DEADLINE: Final = 5.0
"""Seconds for the whole lookup."""
_ONE_ANSWER: Final = 2.0
_MOST_ASKED: Final = 4
_REMEMBERED: Final = 60.0
_MOST_REMEMBERED: Final = 5_000


class DelegationError(Exception):
    """The parent could not be asked; the message says why."""


class _Refused(Exception):  # noqa: N818 - named for what it says
    """A server refuses, or cannot answer."""


class Delegations(Protocol):
    """The full names, without the final dot, of a domain's name servers according to its parent; none if it is not
    delegated. Raises `DelegationError`."""

    async def nameservers(self, domain: str) -> frozenset[str]: ...


@dataclass(frozen=True)
class ParentServers:
    """Uses the resolver of this host, or `resolvers`. `port` and `private` are for tests, whose parents listen on this
    host."""

    resolvers: tuple[str, ...] = ()
    port: int = 53
    private: bool = False
    _random: random.Random = field(default_factory=random.SystemRandom, repr=False)

    async def nameservers(self, domain: str) -> frozenset[str]:
        try:
            with trio.fail_after(DEADLINE):
                return await self._nameservers(dns.name.from_text(domain))
        except trio.TooSlowError:
            raise DelegationError(f"the name servers of the parent of {domain} did not answer in time") from None

    async def _nameservers(self, domain: dns.name.Name) -> frozenset[str]:
        try:
            resolver = self._resolver()
            problem = "none of its addresses is public"
            for address in await self._parents(resolver, domain):
                try:
                    return await self._asked(address, domain)
                except (dns.exception.DNSException, OSError, _Refused) as error:
                    problem = f"{address} says nothing useful: {error}"
        except (dns.exception.DNSException, OSError) as error:
            problem = str(error)
        raise DelegationError(f"the parent of {domain.to_text(omit_final_dot=True)} could not be asked: {problem}")

    def _resolver(self) -> dns.asyncresolver.Resolver:
        resolver = dns.asyncresolver.Resolver(configure=not self.resolvers)
        if self.resolvers:
            resolver.nameservers = list(self.resolvers)
            resolver.port = self.port
        resolver.lifetime = DEADLINE
        return resolver

    async def _parents(self, resolver: dns.asyncresolver.Resolver, domain: dns.name.Name) -> list[str]:
        """Addresses of the servers of the zone that `domain` is delegated from."""
        parent = domain.parent()
        while True:
            try:
                answer = await resolver.resolve(parent, "NS", search=False)
                break
            except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
                # This name is not the apex of a zone: the delegation is in a zone above.
                if parent == dns.name.root:
                    raise
                parent = parent.parent()
        servers = [rdata.target for rdata in answer]
        self._random.shuffle(servers)
        addresses: list[str] = []
        for server in servers:
            for type_ in ("A", "AAAA"):
                found = await resolver.resolve(server, type_, search=False, raise_on_no_answer=False)
                addresses += [rdata.address for rdata in found if self.private or ip_address(rdata.address).is_global]
            if len(addresses) >= _MOST_ASKED:
                break
        return addresses[:_MOST_ASKED]

    async def _asked(self, address: str, domain: dns.name.Name) -> frozenset[str]:
        """The name servers that a parent names. It names them in the authority section; a parent that also serves the
        domain itself, in the answer."""
        question = dns.message.make_query(domain, dns.rdatatype.NS)
        question.flags &= ~dns.flags.RD
        answer, _ = await dns.asyncquery.udp_with_fallback(question, address, timeout=_ONE_ANSWER, port=self.port)
        if answer.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
            raise _Refused(dns.rcode.to_text(answer.rcode()))
        return frozenset(
            rdata.target.to_text(omit_final_dot=True).lower()
            for section in (answer.answer, answer.authority)
            for rrset in section
            if rrset.name == domain and rrset.rdtype == dns.rdatatype.NS
            for rdata in rrset
        )


class RememberedDelegations:
    """Caches the parents' answers for a minute, so that reloading a page of DNS does not wait for them again."""

    def __init__(self, parents: Delegations) -> None:
        self._parents = parents
        self._known: OrderedDict[str, tuple[float, frozenset[str] | DelegationError]] = OrderedDict()

    async def nameservers(self, domain: str) -> frozenset[str]:
        at, known = self._known.get(domain, (-inf, frozenset()))
        if trio.current_time() - at > _REMEMBERED:
            return await self.now(domain)
        if isinstance(known, DelegationError):
            raise DelegationError(str(known))
        return known

    async def now(self, domain: str) -> frozenset[str]:
        """The parent's current answer."""
        found: frozenset[str] | DelegationError
        try:
            found = await self._parents.nameservers(domain)
        except DelegationError as error:
            found = error
        self._known[domain] = (trio.current_time(), found)
        self._known.move_to_end(domain)
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        if isinstance(found, DelegationError):
            raise found
        return found
