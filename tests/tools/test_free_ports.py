"""Ports that the tests give to their programs, of which several run on a machine at once."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import pytest

from tests.support.stack import free_port

Draws = Callable[..., None]


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Draws:
    """Have these ports be tried before others."""

    def draw(*ports: int) -> None:
        drawn = [port - 20_000 for port in ports]
        random = secrets.randbelow
        monkeypatch.setattr(secrets, "randbelow", lambda below: drawn.pop(0) if drawn else random(below))

    return draw


def test_a_row_of_ports_is_given_whole_and_once(draws: Draws) -> None:
    first = free_port(row=3)
    draws(first - 1, first, first + 2)

    given = free_port(row=2)

    assert {given, given + 1}.isdisjoint(range(first, first + 3))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_is_taken_in_one_family_or_protocol_is_not_given(
    draws: Draws, family: socket.AddressFamily, address: str, kind: socket.SocketKind
) -> None:
    with socket.socket(family, kind) as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
        draws(port, port - 1)

        given = free_port(row=2)

    assert port not in (given, given + 1)
