"""`svc audit verify`, with an exit code that a script can act on, and `svc audit export`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from svc.cli.failures import Exit
from svc_actors.store import Database
from svc_actors.store.audit_seals import AuditSealer, newest_seal
from tests.cli.conftest import Terminal
from tests.store.test_audit import write_one
from tests.support.panel_core import listening_core


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core's log is no part of what a command prints."""
    with structlog.testing.capture_logs():
        yield


async def test_it_says_that_the_audit_is_whole_and_what_is_not_sealed_yet(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        socket = str(panel.services.config.socket)
        await write_one(panel_database)
        await AuditSealer(panel_database).round()
        newest = await newest_seal(panel_database)
        await write_one(panel_database)
        assert newest is not None

        told = (await terminal.ok("audit", "verify", "-o", "json", SVC_SOCKET=socket)).json
        known = await terminal.ok("audit", "verify", "--digest", newest.digest, SVC_SOCKET=socket)
        other = await terminal.svc("audit", "verify", "--digest", "0" * 64, SVC_SOCKET=socket)

    assert (told["problem"], told["seals"], told["newest_digest"]) == (None, 1, newest.digest)
    assert (told["rows"], told["unsealed_rows"]) == (newest.rows, 1)
    assert known.code == Exit.OK
    assert other.code == Exit.TASK_FAILED
    assert "no seal has the digest" in other.err


async def test_it_fails_where_a_row_was_changed(
    panel_database: Database, panel_database_url: str, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        await write_one(panel_database)
        await AuditSealer(panel_database).round()
        async with Database.open(panel_database_url.replace("//svc@", "//svc_owner@")) as owner:
            await owner.execute(
                "ALTER TABLE audit DISABLE TRIGGER USER; GRANT UPDATE ON audit TO CURRENT_USER;"
                "UPDATE audit SET actor = 'nobody'"
            )
        ended = await terminal.svc("audit", "verify", SVC_SOCKET=str(panel.services.config.socket))

    assert ended.code == Exit.TASK_FAILED
    assert "seal 1" in ended.err


async def test_an_export_is_one_entry_a_line_over_all_parts(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        socket = str(panel.services.config.socket)
        for _ in range(501):
            await write_one(panel_database)
        whole = await terminal.ok("audit", "export", "--operation", "pool.force_free", SVC_SOCKET=socket)
        none = await terminal.ok("audit", "export", "--until", "2020-01-01T00:00:00Z", SVC_SOCKET=socket)

    numbers = [json.loads(line)["id"] for line in whole.lines()]
    assert len(numbers) == 501
    assert numbers == sorted(set(numbers))
    assert none.out == ""
