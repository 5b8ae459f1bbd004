"""The addresses of a name, as the resolver of this host says them: a small one of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import trio

from svc_webhost.name_addresses import AddressesUnknown, name_addresses

Zone = dict[tuple[str, str], list[str] | dns.rcode.Rcode]
"""By name and type: records, or how the answer fails. Of anything else there is no such name."""


@asynccontextmanager
async def resolver_of(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    socket = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
    await socket.bind(("127.0.0.1", 0))
    port = socket.getsockname()[1]

    def configured() -> dns.asyncresolver.Resolver:
        resolver = original(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], port
        return resolver

    original: Callable[..., dns.asyncresolver.Resolver] = dns.asyncresolver.Resolver
    monkeypatch.setattr(dns.asyncresolver, "Resolver", configured)

    async def serve() -> None:
        while True:
            wire, peer = await socket.recvfrom(4096)
            question = dns.message.from_wire(wire)
            answer = dns.message.make_response(question, recursion_available=True)
            [asked] = question.question
            name, type_ = asked.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(asked.rdtype)
            found = zone.get((name, type_), dns.rcode.NXDOMAIN)
            if isinstance(found, dns.rcode.Rcode):
                answer.set_rcode(found)
            else:
                for record in found:
                    of, kind, value = record.split(" ")
                    answer.answer.append(dns.rrset.from_text(f"{of}.", 60, "IN", kind, value))
            await socket.sendto(answer.to_wire(), peer)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield
        nursery.cancel_scope.cancel()
    socket.close()


async def test_what_a_resolver_says_is_what_a_name_has(monkeypatch: pytest.MonkeyPatch) -> None:
    zone: Zone = {
        ("a.test", "A"): ["a.test A 192.0.2.20", "a.test A 192.0.2.3"],
        ("a.test", "AAAA"): ["a.test AAAA 2001:db8::1"],
        ("four.test", "A"): ["four.test A 192.0.2.1"],
        ("four.test", "AAAA"): [],
        ("alias.test", "A"): ["alias.test CNAME a.test.", "a.test A 192.0.2.3"],
        ("alias.test", "AAAA"): ["alias.test CNAME a.test."],
        ("half.test", "A"): ["half.test A 192.0.2.1"],
        ("half.test", "AAAA"): dns.rcode.SERVFAIL,
        ("mail.test", "A"): [],
        ("mail.test", "AAAA"): [],
    }
    async with resolver_of(zone, monkeypatch):
        found = {name: await name_addresses(name) for name in ("a.test", "four.test", "alias.test", "half.test")}
        none = [await name_addresses("mail.test"), await name_addresses("absent.test")]

    assert found == {
        "a.test": ["192.0.2.3", "192.0.2.20", "2001:db8::1"],
        "four.test": ["192.0.2.1"],
        "alias.test": ["192.0.2.3"],
        "half.test": ["192.0.2.1"],
    }
    assert none == [[], []]


async def test_a_broken_zone_is_not_taken_for_a_name_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    zone: Zone = {("a.test", "A"): dns.rcode.SERVFAIL, ("a.test", "AAAA"): []}
    async with resolver_of(zone, monkeypatch):
        with pytest.raises(AddressesUnknown, match=r"a\.test"):
            await name_addresses("a.test")
