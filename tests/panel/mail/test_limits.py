"""A site that sends more than it may is held, and whoever is concerned learns which program it was."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from svc_actors.panel.mail import holds
from svc_actors.panel.mail.holds import alert_of
from svc_actors.panel.mail.limits import MailCounts, MailLimits, counts_of, limits_of
from svc_actors.panel.sites.records import lock_site
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError
from tests.panel.mail.world import SiteMailWorld

HACKED = "X-PHP-Originating-Script: 1001:x.php\nTo: bob@example.net\n\nbuy\n"
HOUR, DAY = "1 hour", "1 day"


async def pass_time(world: SiteMailWorld, interval: str) -> None:
    for table, column in (
        ("site_mails", "accepted_at"),
        ("site_mail_settings", "held_at"),
        ("site_mail_settings", "held_until"),
        ("site_mail_settings", "counted_from"),
        ("site_mail_settings", "owner_released"),
        ("site_mail_settings", "owner_told"),
    ):
        await world.database.execute(f"UPDATE {table} SET {column} = {column} - interval '{interval}'")


async def release(world: SiteMailWorld, *, by_owner: bool = False) -> None:
    async def work(tx: Transaction) -> None:
        await holds.release(tx, await lock_site(tx, world.site.id), by_owner=by_owner)

    await world.database.transact(work)


async def test_the_limits_are_the_sites_else_the_plans_else_the_servers(world: SiteMailWorld) -> None:
    seen = [await limits_of(world.database, world.site.id)]
    await world.database.execute("INSERT INTO settings (name, value) VALUES ('site_mails_per_hour', '50')")
    seen.append(await limits_of(world.database, world.site.id))
    await world.database.execute(
        """WITH plan AS (INSERT INTO hosting_plans (name, mails_per_hour) VALUES ('small', 20) RETURNING id)
           INSERT INTO hosting_accounts (user_id, plan_id) SELECT $1, id FROM plan""",
        world.owner,
    )
    seen.append(await limits_of(world.database, world.site.id))
    await world.limit(5, 6)
    seen.append(await limits_of(world.database, world.site.id))

    assert seen == [MailLimits(200, 1000), MailLimits(50, 1000), MailLimits(20, 1000), MailLimits(5, 6)]


async def test_the_mail_that_passes_the_limit_holds_the_site_and_names_the_script(world: SiteMailWorld) -> None:
    uploads = world.folder / "public" / "uploads"
    uploads.mkdir(parents=True)
    (uploads / "x.php").touch()
    await world.limit(3)
    await world.send()
    accepted = [(await world.send(HACKED, folder=uploads)).returncode for _ in range(2)]

    refused = await world.send(HACKED, folder=uploads)
    again = await world.send()

    assert accepted == [0, 0]
    assert (refused.returncode, again.returncode) == (75, 75)
    assert b"more than 3 mails in an hour" in refused.stderr
    assert b"public/uploads/x.php: 3" in again.stderr
    assert len(await world.rows()) == len(world.spooled) == 3
    [alert] = await world.alerts(alert_of(world.site.id))
    assert alert.startswith("The mail of shop.example is held: more than 3 mails in an hour")
    audit = await world.database.fetch("SELECT operation FROM audit WHERE target_id = $1", str(world.site.id))
    assert [row["operation"] for row in audit] == ["site.mail.hold"]


async def test_the_owner_is_told_once_a_day(world: SiteMailWorld) -> None:
    await world.limit(0, None)
    await world.limit(1)
    await world.send()
    await world.send()
    await release(world)
    await world.send()
    await world.send()

    mails = await world.database.fetch("SELECT kind, recipient, subject FROM mails")
    assert [tuple(row.values()) for row in mails] == [("alerts", "ada@example.com", "The mail of shop.example is held")]


async def test_a_mail_counts_by_its_recipients(world: SiteMailWorld) -> None:
    await world.limit(3)

    refused = await world.send("To: a@b.example, b@b.example, c@b.example, d@b.example\n\nhi\n")

    assert refused.returncode == 75
    assert await world.rows() == []


async def test_a_hold_of_an_hour_ends_by_itself_and_the_day_counts_on(world: SiteMailWorld) -> None:
    await world.limit(1, 2)
    await world.send()
    await world.send()
    await world.step("holds of sites' mail")
    held = await world.send()

    await pass_time(world, HOUR)
    await world.step("holds of sites' mail")
    free = await world.send()
    alerts = await world.alerts(alert_of(world.site.id))
    await pass_time(world, HOUR)
    daily = await world.send()

    assert (held.returncode, free.returncode, daily.returncode) == (75, 0, 77)
    assert alerts == []
    assert b"more than 2 mails in a day" in daily.stderr


async def test_a_hold_of_a_day_stays_until_it_is_released(world: SiteMailWorld) -> None:
    await world.limit(10, 1)
    await world.send()
    await world.send()
    await pass_time(world, DAY)
    await world.step("holds of sites' mail")
    held = await world.send()

    await release(world, by_owner=True)
    free = await world.send()

    assert (held.returncode, free.returncode) == (77, 0)


async def test_an_owner_releases_once_a_day(world: SiteMailWorld) -> None:
    await world.limit(10, 1)
    await world.send()
    await world.send()
    await release(world, by_owner=True)
    await world.send()
    await world.send()

    with pytest.raises(ServiceError) as refused:
        await release(world, by_owner=True)
    await release(world)

    assert refused.value.code is ErrorCode.CONFLICT
    assert await counts_of(world.database, world.site.id) == MailCounts(0, 0)


async def test_a_site_that_may_send_nothing_is_refused_and_not_held(world: SiteMailWorld) -> None:
    await world.limit(0)

    refused = await world.send()

    assert refused.returncode == 77
    assert b"may not send mail" in refused.stderr
    assert await world.alerts(alert_of(world.site.id)) == []


async def test_mail_that_is_switched_off_is_refused_and_what_is_queued_waits(world: SiteMailWorld) -> None:
    await world.send()

    async def work(tx: Transaction) -> None:
        await holds.set_enabled(tx, await lock_site(tx, world.site.id), False)

    await world.database.transact(work)
    refused = await world.send()
    await world.step("delivery of sites' mail")
    await wait_all_tasks_blocked()

    assert refused.returncode == 77
    assert b"switched off" in refused.stderr
    assert world.relay.waiting == 0
    assert [row["state"] for row in await world.rows()] == ["queued"]
