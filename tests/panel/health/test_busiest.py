"""The site or visitor that uses most of a shared resource is named in the messages of checks, whatever they find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from svc_actors.panel.health import CheckName, HealthStatus
from svc_webhost.databases import EngineKind, Session
from svc_webhost.site_use import SiteUse
from tests.panel.health.world import World
from tests.support.recorded_databases import RecordedDatabases

OK = HealthStatus.OK
LOAD, MEMORY, DISK, SERVICES, QUEUE = (
    CheckName.LOAD,
    CheckName.MEMORY,
    CheckName.DISK,
    CheckName.SERVICES,
    CheckName.QUEUE,
)


async def processor(world: World, number: int) -> None:
    world.vitals.used[number] = SiteUse(processor_seconds=1e6)


async def processes(world: World, number: int) -> None:
    world.vitals.used[number] = SiteUse(refused=7)


async def memory_limit(world: World, number: int) -> None:
    world.vitals.used[number] = SiteUse(memory_bytes=1 << 20, killed=4)


async def memory_of_sessions(world: World, number: int) -> None:
    server = world.databases.server(EngineKind.MARIADB)
    assert isinstance(server, RecordedDatabases)
    server.greedy = [Session(5, f"s{number}_shop", 600 << 20)]
    await world.databases.end_greedy(EngineKind.MARIADB)


async def writing(world: World, number: int) -> None:
    world.vitals.used[number] = SiteUse(written_bytes=1 << 40)


async def sessions(world: World, number: int) -> None:
    server = world.databases.server(EngineKind.POSTGRESQL)
    assert isinstance(server, RecordedDatabases)
    server.open = [Session(each, f"s{number}_shop", 1 << 20) for each in range(20)]


async def connections(world: World, number: int) -> None:
    world.vitals.calling = {"192.0.2.7": 980, "192.0.2.8": 1}


async def jobs(world: World, number: int) -> None:
    for status in ("running", *["queued"] * 7):
        await world.sql(
            "INSERT INTO jobs (kind, title, class, status, site_id) VALUES ('test', 'Test', 'system', $1, $2)",
            status,
            world.site,
        )


NOISES: tuple[tuple[CheckName, Callable[[World, int], Awaitable[None]], str], ...] = (
    (LOAD, processor, "ada.example.com uses"),
    (LOAD, processes, "ada.example.com reached the process limit."),
    (MEMORY, memory_limit, "killed at the memory limit of ada.example.com."),
    (MEMORY, memory_of_sessions, "sessions of ada.example.com were terminated for their memory use."),
    (DISK, writing, "ada.example.com writes"),
    (SERVICES, sessions, "ada.example.com has 20 connections to postgresql."),
    (SERVICES, connections, "192.0.2.7 has 980 connections to the web server."),
    (QUEUE, jobs, "ada.example.com has 8 of the 8 queued or running jobs."),
)


@pytest.mark.parametrize(("name", "noise", "words"), NOISES, ids=[noise.__name__ for _, noise, _ in NOISES])
async def test_who_uses_what_all_share_is_named_while_all_is_well(
    world: World, name: CheckName, noise: Callable[[World, int], Awaitable[None]], words: str
) -> None:
    check = world.checks.all()[name]
    number = await world.database.fetchval("SELECT number FROM sites")
    quiet = SiteUse(processor_seconds=100.0, memory_bytes=64 << 20, killed=3, refused=1, written_bytes=1000)
    world.vitals.used = {number: quiet, 9999: replace(quiet, processor_seconds=7000.0, written_bytes=1 << 40)}
    before = [await check(OK), await check(OK)]
    await noise(world, number)
    finding = await check(OK)

    for each in before:
        assert "ada.example.com" not in each.message
        assert "192.0.2.7" not in each.message
    assert finding.status is OK
    assert words in finding.message, finding.message


async def test_where_no_site_meets_its_limit_the_largest_is_named(world: World) -> None:
    number = await world.database.fetchval("SELECT number FROM sites")
    world.vitals.used = {
        number: SiteUse(memory_bytes=64 << 20, killed=3),
        9999: SiteUse(memory_bytes=3 << 30, killed=0),
    }
    finding = await world.checks.memory(OK)

    assert finding.message.endswith("s9999 uses 3.0 GiB.")


async def test_a_site_that_begins_again_is_not_named_for_what_it_used_before(world: World) -> None:
    number = await world.database.fetchval("SELECT number FROM sites")
    used = {number: SiteUse(processor_seconds=1e6, killed=3, refused=5, written_bytes=1 << 40)}
    for world.vitals.used in ({}, used, {}, used):
        messages = [(await world.checks.all()[name](OK)).message for name in (LOAD, MEMORY, DISK)]
        assert "ada.example.com" not in "".join(messages)
