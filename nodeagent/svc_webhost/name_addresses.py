"""What the world finds in the DNS at a name: its addresses, by the resolver of this host.

Why not `getaddrinfo`: it also reads /etc/hosts, where servers list their own names, and a thread that it waits in
outlives the deadline of its caller. The names are customers' input, and so are the name servers behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Literal

import dns.asyncresolver
import dns.exception
import dns.resolver
import trio

DEADLINE: Final = 5.0
"""Seconds for both types of addresses together."""
_MOST_ADDRESSES: Final = 20
"""Of one name and type: more are not shown."""


class AddressesUnknown(Exception):  # noqa: N818 - named for what it says
    """The resolver did not answer; the message says why."""


NameAddresses = Callable[[str], Awaitable[list[str]]]
"""The IPv4 addresses of a name, then its IPv6 addresses, each in order, also behind aliases; none if it does not exist
or has none. Raises `AddressesUnknown`."""


@dataclass
class _Answers:
    """By type; a type without an answer is absent."""

    addresses: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""


async def name_addresses(name: str) -> list[str]:
    answers = _Answers()
    with trio.move_on_after(DEADLINE) as deadline:
        async with trio.open_nursery() as asking:
            asking.start_soon(_ask, name, "A", answers)
            asking.start_soon(_ask, name, "AAAA", answers)
    found = [address for type_ in ("A", "AAAA") for address in answers.addresses.get(type_, [])]
    # Name servers that fail for one type only are common enough; the other type still leads visitors somewhere.
    if found or len(answers.addresses) == 2:
        return found
    why = "in time" if deadline.cancelled_caught else f"usefully: {answers.problem}"
    raise AddressesUnknown(f"the DNS did not answer about {name} {why}")


async def _ask(name: str, type_: Literal["A", "AAAA"], answers: _Answers) -> None:
    try:
        resolver = dns.asyncresolver.Resolver()
        resolver.lifetime = DEADLINE
        answer = await resolver.resolve(name, type_, search=False, raise_on_no_answer=False)
        texts = [str(rdata.address) for rdata in answer]
    except dns.resolver.NXDOMAIN:
        texts = []
    except (dns.exception.DNSException, OSError) as error:
        answers.problem = str(error)
        return
    answers.addresses[type_] = sorted(texts, key=ip_address)[:_MOST_ADDRESSES]
