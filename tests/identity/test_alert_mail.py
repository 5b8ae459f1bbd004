"""Alerts by mail: to whom, how grave, and how few mails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import pytest

from svc.identity import alert_mail
from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.mail import queue
from svc_actors.store import Database
from svc_common.errors import ServiceError
from tests.support.identity import MAIL, IdentityHarness, WrittenMail, open_identity

ROOT = "root@example.org"


@pytest.fixture
async def world(database: Database) -> AsyncIterator[IdentityHarness]:
    """With one administrator, who is mailed critical alerts as everybody at first."""
    async with open_identity(database, mail=MAIL) as opened:
        await opened.person(ROOT, "administrator")
        yield opened


async def opens(world: IdentityHarness, key: str, severity: Severity = Severity.CRITICAL, message: str = "") -> None:
    await world.database.transact(
        partial(raise_alert, key=key, message=message or f"{key} is wrong", severity=severity)
    )


async def closes(world: IdentityHarness, key: str) -> None:
    await world.database.transact(partial(close_alert, key=key))


async def passes(world: IdentityHarness, time: timedelta) -> None:
    """Have all that happened have happened so much earlier."""
    await world.database.execute(
        "UPDATE alerts SET opened_at = opened_at - $1::interval, closed_at = closed_at - $1::interval", time
    )
    await world.database.execute("UPDATE mails SET created_at = created_at - $1::interval", time)


async def told(world: IdentityHarness, *, after: timedelta = alert_mail.GATHER) -> list[WrittenMail]:
    """The mails of a round, so long after what happened last."""
    await passes(world, after)
    before = len(await world.mails())
    await alert_mail.tell_operators(world.database, world.services.outbox)
    return (await world.mails())[before:]


async def test_what_opens_and_closes_is_told_once_each(world: IdentityHarness) -> None:
    await opens(world, "node-1")
    [opened] = await told(world)
    quiet = await told(world, after=alert_mail.PAUSE)
    await closes(world, "node-1")
    [closed] = await told(world, after=alert_mail.PAUSE)

    assert quiet == []
    assert (opened.recipient, opened.subject) == (ROOT, "Virtual machines: critical: node-1 is wrong")
    assert closed.subject == "Virtual machines: closed: critical: node-1 is wrong"
    assert "https://controller.test/#/alerts" in opened.text
    assert await told(world, after=alert_mail.PAUSE) == []


async def test_a_node_with_a_hundred_machines_is_one_mail(world: IdentityHarness) -> None:
    await opens(world, "node-1")
    for number in range(100):
        await opens(world, f"machine-{number}")

    [mail] = await told(world)

    assert mail.subject == "Virtual machines: alerts: 101 opened, 101 critical"
    assert mail.text.count("is wrong") == 50
    assert "and 51 more" in mail.text
    assert await told(world, after=alert_mail.PAUSE) == []


async def test_alerts_are_gathered_first_and_what_is_over_by_then_is_not_told(world: IdentityHarness) -> None:
    await opens(world, "node-1")

    early = await told(world, after=alert_mail.GATHER / 2)
    await closes(world, "node-1")

    assert early == []
    assert await told(world, after=alert_mail.PAUSE) == []


async def test_what_comes_and_goes_all_the_time_is_a_mail_every_five_minutes(world: IdentityHarness) -> None:
    mails = []
    for number in range(60):
        await opens(world, f"flapping-{number}")
        mails += await told(world)
        await closes(world, f"flapping-{number}")

    assert len(mails) == 60 * alert_mail.GATHER // alert_mail.PAUSE


async def test_each_operator_chooses_the_least_severity(world: IdentityHarness) -> None:
    for name, least in (("all", "warning"), ("nothing", "none"), ("staff", "warning")):
        await world.person(f"{name}@example.org", "staff" if name == "staff" else "administrator")
        browser = await world.signed_in(f"{name}@example.org")
        chosen = await browser.call("PUT", "/alerts/mail", {"least": least})
        assert chosen.json() == (await browser.get("/alerts/mail")).json() == {"least": least}
    await opens(world, "disk", Severity.WARNING)
    warned = await told(world)
    await opens(world, "node", Severity.CRITICAL)

    alarmed = await told(world, after=alert_mail.PAUSE)

    assert {mail.recipient for mail in warned} == {"all@example.org", "staff@example.org"}
    assert {mail.recipient for mail in alarmed} == {ROOT, "all@example.org", "staff@example.org"}


async def test_customers_choose_nothing_and_are_told_nothing(world: IdentityHarness) -> None:
    await world.person("ada@example.org")
    browser = await world.signed_in("ada@example.org")
    await opens(world, "node-1")

    assert (await browser.get("/alerts/mail")).status_code == 403
    assert (await browser.call("PUT", "/alerts/mail", {"least": "warning"})).status_code == 403
    assert {mail.recipient for mail in await told(world)} == {ROOT}


async def test_a_choice_is_one_of_three_and_in_the_audit(world: IdentityHarness) -> None:
    browser = await world.signed_in(ROOT)

    assert (await browser.call("PUT", "/alerts/mail", {"least": "some"})).status_code == 400
    await browser.call("PUT", "/alerts/mail", {"least": "none"})

    row = (await world.audit())[-1]
    assert (row["operation"], row["target_name"], row["details"]) == ("alert.set_mail", ROOT, {"alert_mail": "none"})


async def test_what_becomes_critical_is_told_again(world: IdentityHarness) -> None:
    browser = await world.signed_in(ROOT)
    await browser.call("PUT", "/alerts/mail", {"least": "warning"})
    await opens(world, "disk", Severity.WARNING)
    assert len(await told(world)) == 1
    await opens(world, "disk", Severity.CRITICAL)

    [mail] = await told(world, after=alert_mail.PAUSE)

    assert mail.subject == "Virtual machines: critical: disk is wrong"


async def test_what_somebody_has_acknowledged_is_not_told(world: IdentityHarness) -> None:
    browser = await world.signed_in(ROOT)
    await opens(world, "node-1")
    [alert] = (await browser.get("/alerts")).json()["items"]
    await browser.post(f"/alerts/{alert['id']}/ack")

    assert await told(world) == []


async def test_the_alert_about_mail_is_not_told_by_mail(world: IdentityHarness) -> None:
    await opens(world, "mail")

    assert await told(world) == []


async def test_who_is_told_no_more_is_told_of_no_closing_either(world: IdentityHarness) -> None:
    browser = await world.signed_in(ROOT)
    await opens(world, "node-1")
    await told(world)
    await browser.call("PUT", "/alerts/mail", {"least": "none"})
    await told(world, after=alert_mail.PAUSE)
    await closes(world, "node-1")
    await browser.call("PUT", "/alerts/mail", {"least": "warning"})

    assert await told(world, after=alert_mail.PAUSE) == []


async def test_words_of_an_alert_add_no_header_and_no_line(world: IdentityHarness) -> None:
    await opens(world, "node-1", message="guest said\r\nBcc: eve@example.net\r\n\r\nClick here")

    [mail] = await told(world)

    assert mail.message["Bcc"] is None
    assert mail.subject == "Virtual machines: critical: guest said Bcc: eve@example.net Click here"
    assert "guest said Bcc: eve@example.net Click here" in mail.text


async def test_a_round_that_fails_is_made_up_for(world: IdentityHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await opens(world, "node-1")
    with monkeypatch.context() as full:
        full.setattr(queue, "MOST_QUEUED", 0)
        with pytest.raises(ServiceError):
            await told(world)

    assert len(await told(world)) == 1
