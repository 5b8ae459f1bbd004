"""Ports of the panel that nobody holds, or that a program of a site has taken, are alerts."""

from __future__ import annotations

import os
import socket

from svc_actors.panel.ports import PortWatch
from svc_actors.store import Database
from svc_common.listening import Listener, families, listeners
from svc_webhost.accounts import FIRST_UID

PORTS = {7443: "pages and API", 2222: "SFTP"}
HELD = {Listener(family, port): frozenset({0}) for family in families() for port in PORTS}


async def alerts(database: Database) -> dict[str, str]:
    rows = await database.fetch("SELECT key, message FROM alerts WHERE closed_at IS NULL")
    return {row["key"]: row["message"] for row in rows}


async def test_a_port_that_is_lost_in_one_family_is_an_alert_that_names_both(panel_database: Database) -> None:
    now = dict(HELD)
    watch = PortWatch(panel_database, PORTS, lambda: now)
    await watch.round()
    assert await alerts(panel_database) == {}

    del now[Listener(socket.AF_INET, 2222)]
    now[Listener(socket.AF_INET6, 7443)] = frozenset({FIRST_UID + 1002})
    await watch.round()
    told = await alerts(panel_database)
    assert set(told) == {"port:2222:IPv4", "port:7443:IPv6"}
    assert "2222 (SFTP) on IPv4 is not bound" in told["port:2222:IPv4"]
    assert "used by a program of s1002" in told["port:7443:IPv6"]

    now |= HELD
    await watch.round()
    assert await alerts(panel_database) == {}


def test_the_kernel_says_who_listens_in_which_family() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as version4,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as version6,
    ):
        found = listeners()
        ports = version4.getsockname()[1], version6.getsockname()[1]
    assert found[Listener(socket.AF_INET, ports[0])] == {os.getuid()}
    assert found[Listener(socket.AF_INET6, ports[1])] == {os.getuid()}
    assert Listener(socket.AF_INET6, ports[0]) not in found
