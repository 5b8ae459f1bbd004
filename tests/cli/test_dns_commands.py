"""DNS on the command line: a site is named by its domain."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from svc_actors.store import Database
from tests.cli.conftest import Terminal
from tests.support.panel_core import listening_core
from tests.support.panel_sites import site_row


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core's log is no part of what a command prints."""
    with structlog.testing.capture_logs():
        yield


async def test_a_domain_is_pointed_and_its_records_are_kept_from_the_command_line(
    panel_database: Database, terminal: Terminal
) -> None:
    mx = json.dumps({"type": "MX", "preference": 10, "exchange": "mail.example.net"})
    async with listening_core(panel_database) as panel:
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        socket = ("--socket", str(panel.services.config.socket))

        pointed = await terminal.ok(*socket, "dns", "point", "example.test", "-o", "json")
        created = await terminal.ok(*socket, "dns", "create", "example.test", "@", "--data", mx, "-o", "json")
        record_id = created.json["record"]["id"]
        await terminal.ok(*socket, "dns", "update", "example.test", record_id, "--ttl", "90")
        listed = await terminal.ok(*socket, "dns", "list", "example.test", "-o", "json")
        await terminal.ok(*socket, "dns", "delete", "example.test", record_id, "--yes")
        left = await terminal.ok(*socket, "dns", "list", "example.test", "-o", "json")

    assert pointed.json["addresses"] == ["203.0.113.80"]
    assert pointed.json["effective"] is False
    assert [(record["type"], record["ttl"]) for record in listed.json["records"]] == [("A", 300), ("MX", 90)]
    assert [record["type"] for record in left.json["records"]] == ["A"]
