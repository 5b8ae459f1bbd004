"""The network that a new controller starts with holds no address of its own host."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from svc.controller import defaults

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.0.0/16 2 0 2
        +-- 10.77.0.0/30 2 0 2
           |-- 10.77.0.0
              /16 link UNICAST
           |-- 10.77.0.1
              /32 link UNICAST
              /32 host LOCAL
              /32 host LOCAL
        |-- 10.77.255.255
           /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
"""
"""As Linux 6.1 prints it, with two routes to one address: two devices have it."""


def test_the_hosts_own_addresses_are_read_whatever_routes_lead_to_them(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(TRIE)
    own = defaults._own_addresses(tmp_path / "fib_trie")
    assert set(own) == {IPv4Address("10.77.0.1"), IPv4Address("127.0.0.1")}
    assert defaults._own_addresses(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("own", "chosen"),
    [([], "10.77.0.0/16"), (["10.77.3.4"], "10.177.0.0/16"), (["10.77.0.1", "10.177.0.1"], "172.27.0.0/16")],
)
def test_the_default_network_is_one_without_an_address_of_the_host(
    monkeypatch: pytest.MonkeyPatch, own: list[str], chosen: str
) -> None:
    monkeypatch.setattr(defaults, "_own_addresses", lambda: [IPv4Address(text) for text in own])
    assert str(defaults._nat_network()) == chosen


def test_it_reads_this_host() -> None:
    assert all(isinstance(address, IPv4Address) for address in defaults._own_addresses())
