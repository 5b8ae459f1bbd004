"""Limits how fast one address may open connections to the web server, with an nftables table of the panel's own.

nginx does not count a connection before its request's header is complete, so its configuration cannot keep one address
from using up all connections with incomplete requests. Here an address that opens more than `AT_ONCE` and `A_SECOND` of
them is delayed: its packets are dropped, and its kernel sends them again. With nginx's deadline for a header (20 s) an
address holds at most 3,000. Rejected: counting the connections themselves (`ct count`). It makes conntrack remember
every visitor, in a table that a flood fills for everybody.

Programs of sites connect through the loopback interface and are counted by their account; root and other services of
this server are not counted.

In the same table, programs of sites are kept from link-local addresses and those of `METADATA`, where a cloud provides
the machine's credentials. DNS is still allowed there, as several clouds have their resolver at the same address.
Packets are dropped rather than refused, as not every kernel can refuse: a program waits until its own deadline.

Why: docs/decisions/0042-bounds-on-visitors.md.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from svc_webhost.accounts import FIRST_UID

TABLE: Final = "svc_visitors"
AT_ONCE: Final = 1000
A_SECOND: Final = 100
"""The most new connections per second: an office behind one address, or an edge of a content delivery network, opens
some dozens."""
METADATA: Final = (
    *("100.100.100.200", "168.63.129.16"),
    *("fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42"),
)
"""Metadata services in addition to 169.254.0.0/16 and fe80::/10: of Alibaba and Azure, and for IPv6 of AWS, Google,
Oracle and Scaleway, according to their documentation. Azure's address is also its machines' resolver, and provides the
settings of their extensions."""
_OWN_AT_ONCE: Final = 200
_OWN_A_SECOND: Final = 20
_LAST_UID: Final = 1_999_999_999
"""The last user id of sites; accounts above it are systemd's."""
_PROGRAM: Final = "/usr/sbin/nft"
_SECONDS: Final = 10.0
_UNBOUND: Final = "One address can hold all connections of the web server"
_SYN: Final = "tcp flags & (fin | syn | rst | ack) == syn"


class VisitorsError(Exception):
    """The limit is not in place; the message says why."""


class VisitorBound(Protocol):
    async def hold(self) -> None:
        """Make sure that the limit is in place, even if somebody removed it. Raises `VisitorsError`."""
        ...


class NftBound:
    """The limit on connections to these ports, in a table of nftables."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._made = False

    async def hold(self) -> None:
        # The first call always creates the table anew, because an earlier core may have had other ports.
        if self._made and (await self._nft("list", "table", "inet", TABLE)).returncode == 0:
            return
        ran = await self._nft("-f", "-", given=ruleset(self._ports))
        if ran.returncode != 0:
            said = re.sub(r"\s+", " ", ran.stderr.decode(errors="replace")).strip()
            raise VisitorsError(f"{_UNBOUND}: nft does not bound it: {said}")
        self._made = True

    async def _nft(self, *words: str, given: str = "") -> subprocess.CompletedProcess[bytes]:
        try:
            with trio.fail_after(_SECONDS):
                return await trio.run_process(
                    [_PROGRAM, *words], stdin=given.encode(), capture_stdout=True, capture_stderr=True, check=False
                )
        except (OSError, trio.TooSlowError) as error:
            raise VisitorsError(f"{_UNBOUND}: {_PROGRAM}: {error}") from error


def ruleset(ports: Sequence[int], loopback: str = "lo") -> str:
    """The input of nft(8) that creates or replaces the table in one step. Packets that come in by `loopback` are
    counted where they leave."""
    places = f"tcp dport {{ {', '.join(map(str, sorted(set(ports))))} }} {_SYN}"
    rate = f"limit rate over {A_SECOND}/second burst {AT_ONCE} packets"
    of_site = f"meta skuid {FIRST_UID}-{_LAST_UID}"
    of6 = [each for each in METADATA if ":" in each]
    of4 = [each for each in METADATA if each not in of6]
    own = f"limit rate over {_OWN_A_SECOND}/second burst {_OWN_AT_ONCE} packets"
    return f"""\
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
    set of4 {{ type ipv4_addr; size 65536; flags dynamic,timeout; timeout 1m; }}
    set of6 {{ type ipv6_addr; size 65536; flags dynamic,timeout; timeout 1m; }}
    set of_sites {{ typeof meta skuid; size 65536; flags dynamic,timeout; timeout 1m; }}
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        iifname "{loopback}" accept
        {places} update @of4 {{ ip saddr {rate} }} drop
        {places} update @of6 {{ ip6 saddr & ffff:ffff:ffff:ffff:: {rate} }} drop
    }}
    chain output {{
        type filter hook output priority filter - 10; policy accept;
        {of_site} ip daddr {{ {", ".join(["169.254.0.0/16", *of4])} }} tcp dport != 53 drop
        {of_site} ip6 daddr {{ {", ".join(["fe80::/10", *of6])} }} tcp dport != 53 drop
        oifname "{loopback}" {places} meta skuid >= {FIRST_UID} update @of_sites {{ meta skuid {own} }} drop
    }}
}}
"""
