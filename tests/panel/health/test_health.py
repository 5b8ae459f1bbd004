"""Health of the server: each check finds what it is for, what stays is told once, and what comes and goes is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from socket import AF_INET, AF_INET6, create_connection, socket
from typing import Any
from uuid import UUID

import pytest

from svc_actors.errors import unavailable
from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases import EngineKind, Session
from svc_actors.host.knot import KnotError
from svc_actors.host.launcher import Service, ServiceName, ServiceStatus
from svc_actors.host.site_runtime import service_name
from svc_actors.host.site_use import SiteUse
from svc_actors.host.vitals import SystemVitals
from svc_actors.panel.databases.agreeing import SiteDatabases
from svc_actors.panel.health import CheckName, HealthStatus
from svc_actors.panel.health.busiest import Busiest
from svc_actors.panel.health.checks import Checks
from svc_actors.panel.health.records import Finding
from svc_actors.panel.health.watch import HealthWatch
from svc_actors.store import Database
from tests.support.dns import RecordedNameServer
from tests.support.harness import Client
from tests.support.panel import PanelHarness, RecordedLauncher, RecordedVitals, open_panel, recorded_host
from tests.support.panel_sites import site_row
from tests.support.recorded_databases import RecordedDatabases

RESTING = service_name(SiteAccount(1001), "php-8.2")
"""Of a site that nobody visits."""
OK, WARNING, CRITICAL = HealthStatus.OK, HealthStatus.WARNING, HealthStatus.CRITICAL


@dataclass
class Launched(RecordedLauncher):
    """Programs that were started, of which some run no more."""

    dead: tuple[str, ...] = (RESTING,)

    async def status(self, name: ServiceName) -> ServiceStatus:
        return ServiceStatus(running=name not in self.dead)


@dataclass
class World:
    panel: PanelHarness
    root: Client
    site: UUID
    launcher: Launched
    name_server: RecordedNameServer
    vitals: RecordedVitals
    databases: SiteDatabases
    checks: Checks

    @property
    def database(self) -> Database:
        return self.panel.database

    async def sql(self, statement: str, *values: object) -> None:
        await self.database.execute(statement, *values)

    async def health(self, query: str = "") -> dict[str, Any]:
        answer = await self.root.get(f"/health{query}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.database.fetch("SELECT body FROM webhook_events WHERE event = 'health.critical' ORDER BY at")
        return [dict(row) for row in rows]

    async def alerts(self) -> list[str]:
        rows = await self.database.fetch("SELECT key FROM alerts WHERE key LIKE 'health:%' AND closed_at IS NULL")
        return [row["key"] for row in rows]


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    launcher, name_server, vitals = Launched(), RecordedNameServer(), RecordedVitals()
    host = replace(recorded_host(name_server), launcher=launcher, vitals=vitals)
    async with open_panel(panel_database, tmp_path, host, loops=["health"]) as panel:
        for name in (ServiceName("nginx"), RESTING):
            await launcher.ensure(Service(name, ("/bin/true",)))
        site = await site_row(panel_database, await panel.person("ada@example.com"), "ada.example.com")
        databases = SiteDatabases(panel_database, host.databases)
        busiest = Busiest(panel_database, vitals, host.databases, databases.ended, (80, 443))
        checks = Checks(panel_database, launcher, name_server, vitals, host.databases, tmp_path, busiest)
        yield World(panel, await panel.administrator(), site, launcher, name_server, vitals, databases, checks)


def looking(world: World, *found: HealthStatus) -> HealthWatch:
    """At a disk of which each look finds the next of these."""
    row = iter(found)

    async def look(before: HealthStatus) -> Finding:
        return Finding(status := next(row), f"It is {status}.", 1.0)

    return HealthWatch(world.database, {CheckName.DISK: look})


CERTIFICATE = """INSERT INTO site_certificates
    (site_id, source, names, issuer, not_before, not_after, fingerprint, chain, sealed_key)
    VALUES ($1, 'uploaded', '{ada.example.com}', 'x', now() - interval '90 days', now() + $2::text::interval,
            repeat('a', 64), '', '')"""
SCHEDULE = """INSERT INTO backup_schedules
    (site_id, frequency, hour, weekday, keep_last, keep_daily, keep_weekly, keep_monthly, next_run_at)
    VALUES ($1, 'daily', 3, 0, 7, 7, 4, 3, now() + interval '1 day')"""


async def full(world: World) -> None:
    world.vitals.bytes = 96


async def no_inodes(world: World) -> None:
    world.vitals.inodes = 99


async def no_memory(world: World) -> None:
    world.vitals.memory_used = 98


async def busy(world: World) -> None:
    world.vitals.loaded = 12


async def killed(world: World) -> None:
    world.launcher.dead = ("nginx", RESTING)


async def mute(world: World) -> None:
    """Its process is there, and what the engine is asked fails."""
    await world.launcher.ensure(Service(ServiceName("mariadb"), ("/bin/true",)))


async def expiring(world: World) -> None:
    await world.sql(CERTIFICATE, world.site, "6 days")


async def expired(world: World) -> None:
    await world.sql(CERTIFICATE, world.site, "-1 hours")


async def late(world: World) -> None:
    await world.sql(SCHEDULE, world.site)
    await world.sql("UPDATE sites SET created_at = now() - interval '3 days'")


async def never(world: World) -> None:
    await world.sql(SCHEDULE, world.site)
    await world.sql("UPDATE sites SET created_at = now() - interval '6 days'")


async def failing_copies(world: World, since: str = "1 hour") -> None:
    target = await world.database.fetchval(
        "INSERT INTO backup_targets (name, kind, settings) VALUES ('nas', 'local', '{}') RETURNING id"
    )
    repository = await world.database.fetchval(
        "INSERT INTO backup_repositories (site_id, domain, sealed_key) VALUES ($1, 'ada.example.com', '') RETURNING id",
        world.site,
    )
    for job, (error, ago) in enumerate(((None, "5 days"), ("it is away", since))):
        backup = await world.database.fetchval(
            "INSERT INTO site_backups (repository_id, cause, job_id) VALUES ($1, 'manual', $2) RETURNING id",
            repository,
            1000 + job,
        )
        await world.sql(
            """INSERT INTO backup_copies (backup_id, target_id, error, at)
               VALUES ($1, $2, $3, now() - $4::text::interval)""",
            backup,
            target,
            error,
            ago,
        )


async def failing_for_days(world: World) -> None:
    await failing_copies(world, "2 days")


async def stuck(world: World) -> None:
    # Of a site that is busy: nothing begins it meanwhile.
    await world.sql(
        """INSERT INTO jobs (kind, title, class, status, site_id, created_at)
           SELECT 'test.stuck', 'Stuck', 'system', 'queued', NULL, now() - interval '7 hours'"""
    )


async def no_names(world: World) -> None:
    world.name_server.failure = KnotError("no answer")


async def unserved(world: World) -> None:
    world.name_server.zones["ada.example.com"] = None


async def not_kept(world: World) -> None:
    world.vitals.kept = False


async def set_back(world: World) -> None:
    await world.sql(
        """INSERT INTO audit (at, actor, role, via, request_id, operation, target_kind, outcome)
           VALUES (now() + interval '1 hour', 'ada', 'customer', 'token', 'r', 'site.create', 'site', 'ok')"""
    )


INJECTED: tuple[tuple[CheckName, Callable[[World], Awaitable[None]], HealthStatus, str], ...] = (
    (CheckName.DISK, full, CRITICAL, "96 % full"),
    (CheckName.INODES, no_inodes, CRITICAL, "99 %"),
    (CheckName.MEMORY, no_memory, CRITICAL, "98 %"),
    (CheckName.LOAD, busy, CRITICAL, "12.0"),
    (CheckName.SERVICES, killed, CRITICAL, "do not run: nginx."),
    (CheckName.SERVICES, mute, CRITICAL, "do not answer: mariadb."),
    (CheckName.CERTIFICATES, expiring, WARNING, "ada.example.com"),
    (CheckName.CERTIFICATES, expired, CRITICAL, "ada.example.com"),
    (CheckName.BACKUPS, late, WARNING, "ada.example.com"),
    (CheckName.BACKUPS, never, CRITICAL, "ada.example.com"),
    (CheckName.REMOTES, failing_copies, WARNING, "nas"),
    (CheckName.REMOTES, failing_for_days, CRITICAL, "nas"),
    (CheckName.QUEUE, stuck, CRITICAL, "7.0 hours"),
    (CheckName.DNS, no_names, CRITICAL, "no answer"),
    (CheckName.DNS, unserved, WARNING, "ada.example.com"),
    (CheckName.CLOCK, not_kept, WARNING, "No time service"),
    (CheckName.CLOCK, set_back, CRITICAL, "60 minutes"),
)


@pytest.mark.parametrize(
    ("name", "inject", "status", "words"), INJECTED, ids=[inject.__name__ for _, inject, *_ in INJECTED]
)
async def test_a_fault_is_found_by_its_check(
    world: World, name: CheckName, inject: Callable[[World], Awaitable[None]], status: HealthStatus, words: str
) -> None:
    check = world.checks.all()[name]
    before = await check(OK)
    await inject(world)
    finding = await check(OK)

    assert before.status is OK, before.message
    assert finding.status is status
    assert words in finding.message


async def test_a_database_that_does_not_answer_is_critical(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise unavailable("no connection")

    before = await world.checks.answering(OK)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "fetchval", away)
        finding = await world.checks.answering(OK)

    assert (before.status, finding.status) == (OK, CRITICAL)


def test_every_check_is_injected_once() -> None:
    assert {name for name, *_ in INJECTED} | {CheckName.DATABASE} == set(CheckName)


async def test_this_machine_says_how_it_is(tmp_path: Path) -> None:
    vitals = SystemVitals()
    filled = vitals.filled(tmp_path)

    assert 0 < filled.bytes <= 100
    assert filled.inodes is None or 0 <= filled.inodes <= 100
    assert 0 < vitals.memory() < 100
    assert vitals.load() >= 0
    assert vitals.synchronised() in (True, False)


async def test_this_machine_says_who_has_connections_to_a_port() -> None:
    with ExitStack() as stack:
        ports = []
        for family, address, number in ((AF_INET, "127.0.0.1", 3), (AF_INET6, "::1", 2)):
            listening = stack.enter_context(socket(family))
            listening.bind((address, 0))
            listening.listen()
            ports.append(port := listening.getsockname()[1])
            for _ in range(number):
                stack.enter_context(create_connection((address, port)))
        found = SystemVitals().callers(ports)
        of_one = SystemVitals().callers(ports[:1])

    assert found == {"127.0.0.1": 3, "::/64": 2}
    assert of_one == {"127.0.0.1": 3}


async def test_a_number_that_stays_at_a_level_is_one_incident(world: World) -> None:
    world.vitals.bytes = 94
    found = {before: (await world.checks.disk(before)).status for before in (OK, WARNING, CRITICAL)}
    world.vitals.bytes = 92
    below = (await world.checks.disk(CRITICAL)).status

    assert found == {OK: WARNING, WARNING: WARNING, CRITICAL: CRITICAL}
    assert below is WARNING


async def test_what_becomes_critical_is_told_once_until_it_is_over(world: World) -> None:
    watch = looking(world, *[CRITICAL] * 6, *[OK] * 3, *[CRITICAL] * 2)
    seen = []
    for _ in range(11):
        await watch.round()
        seen.append((len(await world.told()), await world.alerts()))
    health = await world.health("?events=true")

    assert [number for number, _ in seen] == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    assert [bool(alerts) for _, alerts in seen] == [False, *[True] * 7, False, False, True]
    assert [(event["before"], event["status"]) for event in health["events"]] == [
        ("ok", "critical"),
        ("critical", "ok"),
        ("ok", "critical"),
    ]
    assert health["status"] == "critical"
    assert datetime.fromisoformat(health["checks"][0]["since"])


async def test_what_comes_and_goes_is_nothing(world: World) -> None:
    watch = looking(world, *[CRITICAL, OK] * 4, CRITICAL, WARNING)
    for _ in range(8):
        await watch.round()
    flapping = await world.health("?events=true")
    for _ in range(2):
        await watch.round()
    settled = await world.health("?events=true")

    assert (flapping["status"], flapping["events"]) == ("ok", [])
    assert [event["status"] for event in settled["events"]] == ["warning"]
    assert await world.told() == []


async def test_a_core_that_starts_goes_on_with_the_incident(world: World) -> None:
    first = looking(world, CRITICAL, CRITICAL)
    await first.round()
    await first.round()
    second = looking(world, CRITICAL, CRITICAL, CRITICAL)
    for _ in range(3):
        await second.round()

    assert len(await world.told()) == 1


async def test_what_could_not_be_written_is_told_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = looking(world, *[CRITICAL] * 3)
    await watch.round()

    async def away(*_: object) -> None:
        raise unavailable("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transact", away)
        with pytest.raises(Exception, match="no connection"):
            await watch.round()
    missed = await world.told()
    await watch.round()

    assert missed == []
    assert len(await world.told()) == 1


async def test_a_check_that_fails_holds_up_no_other(world: World) -> None:
    async def broken(before: HealthStatus) -> Finding:
        raise OSError(5, "Input/output error")

    watch = HealthWatch(world.database, {**world.checks.all(), CheckName.LOAD: broken})
    await watch.round()
    await watch.round()
    health = await world.health()

    assert [check["name"] for check in health["checks"]] == [name.value for name in CheckName]
    assert {check["name"]: check["status"] for check in health["checks"]}["load"] == "unknown"
    assert health["status"] == "unknown"
    assert health["events"] is None


async def test_events_are_kept_for_thirty_days(world: World) -> None:
    for days in (29, 31):
        await world.sql(
            """INSERT INTO health_events (at, "check", before, status, message)
               VALUES (now() - make_interval(days => $1), 'disk', 'ok', 'warning', $1::text)""",
            days,
        )
    await looking(world, OK).round()
    left = await world.database.fetch("SELECT message FROM health_events")

    assert [row["message"] for row in left] == ["29"]


async def test_administrators_alone_read_it_also_with_the_scope_jobs(world: World) -> None:
    root = await world.database.fetchval("SELECT id FROM users WHERE email = 'root@example.com'")
    ada = await world.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
    allowed = [
        (await world.panel.program(await world.panel.token(person, (scope,))).get("/health")).status_code
        for person, scope in ((root, "jobs"), (root, "read"), (root, "sites"), (ada, "jobs"), (ada, "admin"))
    ]

    assert allowed == [200, 200, 403, 403, 403]


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
