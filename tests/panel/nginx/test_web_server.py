"""What those are told who change what the web server serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from svc_actors.panel.web_server import WebServer
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.nginx import NginxError, SiteServer, Suspended
from tests.support.served import RecordedServing


def site(number: int, *, alias: str | None = None) -> SiteServer:
    aliases = () if alias is None else (alias,)
    return SiteServer(number=number, domain=f"site{number}.example", aliases=aliases, serves=Suspended())


@asynccontextmanager
async def running(database: Database, serving: RecordedServing, *recorded: SiteServer) -> AsyncIterator[WebServer]:
    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        return recorded, {}

    server = WebServer(database, serving, wanted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def alerts(database: Database) -> list[str]:
    rows = await database.fetch("SELECT message FROM alerts WHERE closed_at IS NULL ORDER BY key")
    return [row["message"] for row in rows]


async def test_it_begins_with_what_the_records_say(panel_database: Database) -> None:
    serving = RecordedServing()

    async with running(panel_database, serving, site(1), site(2)) as server:
        await server.change({3: site(3)})

    assert sorted(serving.sites) == [1, 2, 3]


async def test_changes_that_come_close_together_are_taken_up_as_one(panel_database: Database) -> None:
    serving = RecordedServing()

    async with running(panel_database, serving) as server:
        async with trio.open_nursery() as askers:
            for number in range(1, 101):
                askers.start_soon(server.change, {number: site(number)})

    assert len(serving.sites) == 100
    assert len(serving.applied) == 1


async def test_each_is_told_of_their_own_sites_only(panel_database: Database) -> None:
    serving = RecordedServing(refuses={2: "cannot load certificate"})
    told: dict[int, ServiceError | None] = {}

    async def ask(server: WebServer, number: int) -> None:
        try:
            await server.change({number: site(number)})
        except ServiceError as error:
            told[number] = error
        else:
            told[number] = None

    async with running(panel_database, serving) as server:
        async with trio.open_nursery() as askers:
            for number in (1, 2, 3):
                askers.start_soon(ask, server, number)

    refused = told[2]
    assert (told[1], told[3]) == (None, None)
    assert refused is not None
    assert refused.code is ErrorCode.CONFLICT
    assert refused.message == ("The web server rejected the configuration of site2.example: cannot load certificate.")
    assert sorted(serving.sites) == [1, 3]
    assert await alerts(panel_database) == []


async def test_of_two_changes_to_one_site_the_later_counts(panel_database: Database) -> None:
    serving = RecordedServing()

    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        return (), {}

    server = WebServer(panel_database, serving, wanted)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as askers:
            askers.start_soon(server.change, {1: site(1, alias="first.example")})
            await trio.testing.wait_all_tasks_blocked()
            askers.start_soon(server.change, {1: site(1, alias="second.example")})
            await trio.testing.wait_all_tasks_blocked()
            # Both have asked before anything is taken up, however slow this machine is.
            nursery.start_soon(server.run)
        nursery.cancel_scope.cancel()

    assert serving.sites[1].aliases == ("second.example",)
    assert len(serving.applied) == 1


async def test_a_server_that_cannot_be_changed_is_told_to_all_who_asked(panel_database: Database) -> None:
    serving = RecordedServing()

    async with running(panel_database, serving, site(1)) as server:
        await server.change({2: site(2)})
        serving.down = "The web server's configuration cannot be written: No space left on device."
        with pytest.raises(ServiceError, match="No space left") as refused:
            await server.change({3: site(3)})
        serving.down = None
        await server.change({3: site(3)})

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert sorted(serving.sites) == [1, 2, 3]


async def test_while_nginx_does_not_start_nobody_waits(panel_database: Database) -> None:
    serving = RecordedServing(down="The web server does not start: no such file")

    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        return (site(1),), {}

    server = WebServer(panel_database, serving, wanted)
    with pytest.raises(NginxError):
        await server.run()

    with pytest.raises(ServiceError, match="does not start") as refused:
        await server.change({1: site(1)})

    assert refused.value.code is ErrorCode.UNAVAILABLE


async def test_while_the_records_cannot_be_read_nobody_waits(panel_database: Database) -> None:
    broken = True

    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        if broken:
            raise RuntimeError("a defect")
        return (site(1),), {}

    serving = RecordedServing()
    server = WebServer(panel_database, serving, wanted)
    told: list[ServiceError] = []

    async def ask() -> None:
        try:
            await server.change({2: site(2)})
        except ServiceError as error:
            told.append(error)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="a defect"):
                await server.run()
        await ask()
        broken = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await serving.told.until(lambda: serving.sites)
            await _until_changed(server, {2: site(2)})
            nursery.cancel_scope.cancel()

    assert [error.code for error in told] == [ErrorCode.UNAVAILABLE] * 2
    assert "defect" not in told[0].message
    assert sorted(serving.sites) == [1, 2]


async def test_a_site_left_out_for_the_sake_of_the_others_has_an_alert(panel_database: Database) -> None:
    serving = RecordedServing()

    async with running(panel_database, serving, site(1), site(2)) as server:
        await server.change({2: site(2)})
        serving.refuses = {1: "no certificate"}
        await server.change({2: site(2, alias="a.example")})
        raised = await _until(panel_database, 1)
        serving.refuses = {}
        await server.change({1: site(1)})
        await _until(panel_database, 0)

    assert raised == ["The web server rejected the configuration of site 1: no certificate"]


async def test_what_nobody_waits_for_any_more_is_not_begun(panel_database: Database) -> None:
    serving = RecordedServing()

    async with running(panel_database, serving) as server:
        with trio.move_on_after(0):
            await server.change({1: site(1)})
        await server.change({2: site(2)})

    assert sorted(serving.sites) == [2]


async def test_logs_are_looked_at_while_nobody_changes_anything(
    panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.web_server.LOGS_SECONDS", 0.01)
    serving = RecordedServing()

    async with running(panel_database, serving, site(1)) as server:
        await serving.told.until(lambda: serving.rotations >= 2)
        await server.change({2: site(2)})

    assert sorted(serving.sites) == [1, 2]


async def test_nginx_is_looked_at_while_nobody_changes_anything(
    panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.web_server.LOOK_SECONDS", 0.01)
    serving = RecordedServing()

    async with running(panel_database, serving, site(1)):
        await serving.told.until(lambda: serving.looks >= 2)

    assert sorted(serving.sites) == [1]


async def test_an_nginx_that_a_look_cannot_start_ends_the_loop(
    panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.web_server.LOOK_SECONDS", 0.01)
    serving = RecordedServing()

    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        serving.down = "The web server does not start: no such file"
        return (), {}

    async def start(sites: Iterable[SiteServer]) -> dict[int, str]:
        return {}

    monkeypatch.setattr(serving, "start", start)

    with trio.fail_after(30), pytest.raises(NginxError, match="no such file"):
        await WebServer(panel_database, serving, wanted).run()


async def _until_changed(server: WebServer, servers: dict[int, SiteServer | None]) -> None:
    """Its start ends a moment after nginx has been given the sites."""
    while True:
        try:
            return await server.change(servers)
        except ServiceError:
            await trio.sleep(0.01)


async def _until(database: Database, count: int) -> list[str]:
    with trio.fail_after(30):
        while len(open_ := await alerts(database)) != count:
            await trio.sleep(0.01)
    return open_
