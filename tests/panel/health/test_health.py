"""Health of the server: each check finds what it is for, what stays is told once, and what comes and goes is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import AF_INET, AF_INET6, create_connection, socket

import pytest

from svc_actors.alerts import Severity, set_alert
from svc_actors.mail.alert import SITE_MAIL
from svc_actors.panel.health import CheckName, HealthStatus
from svc_actors.panel.health.records import Finding
from svc_actors.panel.health.watch import HealthWatch
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.knot import KnotError
from svc_webhost.launcher import Service, ServiceName
from svc_webhost.vitals import SystemVitals
from tests.panel.health.world import RESTING, World

OK, WARNING, CRITICAL = HealthStatus.OK, HealthStatus.WARNING, HealthStatus.CRITICAL


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


async def held_mail(world: World) -> None:
    await world.sql(
        "INSERT INTO site_mail_settings (site_id, held_at, held_reason) VALUES ($1, now(), 'too many')", world.site
    )


async def waiting_mail(world: World) -> None:
    await world.sql(
        """INSERT INTO site_mails (message, site_id, sender, recipient, bytes, attempt_at, deadline_at)
           VALUES (gen_random_uuid(), $1, 'a@ada.example.com', 'b@example.net', 1, now() - interval '90 minutes',
                   now() + interval '2 days')""",
        world.site,
    )


async def mail_without_a_relay(world: World) -> None:
    await waiting_mail(world)
    message = "The mail of sites cannot be delivered: relay.example:587: Connection refused"
    await world.database.transact(partial(set_alert, key=SITE_MAIL, message=message, severity=Severity.CRITICAL))


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
    (CheckName.CLOCK, not_kept, WARNING, "not synchronized"),
    (CheckName.CLOCK, set_back, CRITICAL, "60 minutes"),
    (CheckName.MAIL, held_mail, WARNING, "The mail of sites is held: ada.example.com (too many)."),
    (CheckName.MAIL, waiting_mail, WARNING, "1 wait, the first of them should have been sent 1.5 hours ago"),
    (CheckName.MAIL, mail_without_a_relay, WARNING, "Connection refused. 1 wait."),
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


async def test_sites_without_a_schedule_are_named_unless_they_should_have_none(world: World) -> None:
    named = await world.checks.backups(OK)
    await world.sql("INSERT INTO settings (name, value) VALUES ('default_backups', '\"off\"')")
    fine = await world.checks.backups(OK)

    assert (named.status, fine.status) == (OK, OK)
    assert named.message == "No backup is overdue. Sites without a backup schedule: ada.example.com."
    assert fine.message == "No backup is overdue."


async def test_mail_that_a_recipient_defers_is_no_warning(world: World) -> None:
    await waiting_mail(world)
    await world.sql(
        """UPDATE site_mails SET accepted_at = now() - interval '2 days', attempt_at = now() + interval '20 minutes',
               attempts = 9, error = '450 greylisted'"""
    )

    finding = await world.checks.mail(OK)

    assert (finding.status, finding.message) == (OK, "Mails of sites that wait for delivery: 1.")


async def test_a_queue_that_takes_long_is_no_warning_while_mail_is_delivered(world: World) -> None:
    await waiting_mail(world)
    await waiting_mail(world)
    await world.sql(
        """UPDATE site_mails SET state = 'sent', ended_at = now()
           WHERE id = (SELECT id FROM site_mails LIMIT 1)"""
    )

    finding = await world.checks.mail(OK)

    assert (finding.status, finding.message) == (OK, "Mails of sites that wait for delivery: 1.")


async def test_a_fresh_panel_says_that_it_sends_no_mail_of_sites(world: World) -> None:
    finding = await replace(world.checks, relay=False).mail(OK)

    assert finding.status is WARNING
    assert finding.message == "This server sends no mail of sites: set host and sender of [mail] (docs/mail.md)."


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
        found = SystemVitals().connections_by_address(ports)
        of_one = SystemVitals().connections_by_address(ports[:1])

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
