"""Listening TCP ports of this machine and their users, as the kernel reports them (proc(5), /proc/net/tcp)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_LISTENING: Final = "0A"
_TABLES: Final = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
NAMES: Final = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


class Listener(NamedTuple):
    family: socket.AddressFamily
    port: int


def families() -> tuple[socket.AddressFamily, ...]:
    """IPv4, and IPv6 if the kernel supports it."""
    return (socket.AF_INET, *([socket.AF_INET6] if Path("/proc/net/if_inet6").exists() else []))


def everywhere() -> tuple[str, ...]:
    """The wildcard addresses of each family: a listener at one of them takes the port for its whole family."""
    return tuple("::" if family is socket.AF_INET6 else "0.0.0.0" for family in families())  # noqa: S104


def hosts_of(host: str) -> tuple[str, ...]:
    """The addresses that settings mean by `host`. `*` and `::` mean all addresses of this machine, of both families: a
    dual-stack socket at `::` would have both, too."""
    return everywhere() if host in ("*", "::") else (host,)


def addresses_of(host: str, port: int) -> list[str]:
    """The addresses to listen at, with this port, in the form that hypercorn takes and people read."""
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts_of(host)]


def listeners() -> Mapping[Listener, frozenset[int]]:
    """The user ids that own the sockets listening at each port, at any address of its family."""
    found: dict[Listener, set[int]] = {}
    for family in families():
        for line in Path("/proc/net", _TABLES[family]).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENING:
                port = int(words[1].rpartition(":")[2], 16)
                found.setdefault(Listener(family, port), set()).add(int(words[7]))
    return {listener: frozenset(users) for listener, users in found.items()}
