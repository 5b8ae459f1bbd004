"""Accepted mail of sites reaches the relay: each once, in turns, whatever the relay answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest
from trio.testing import MockClock

from svc.panel.services import PanelLoop
from svc_actors.mail import Delivery, alert
from svc_actors.mail.alert import SITE_MAIL, DeliveryAlert
from svc_actors.mail.delivery import FIRST_PAUSE
from svc_actors.panel.mail import queue, spool
from svc_actors.panel.mail.queue import ClaimedSiteMail, QueuedSiteMails
from svc_actors.panel.mail.spool import Spool
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError
from tests.panel.mail.world import SiteMailWorld
from tests.support.panel_sites import site_row
from tests.support.smtp import VANISH

DELIVERY: Final[PanelLoop] = "delivery of sites' mail"


@pytest.fixture
def mock_clock() -> MockClock:
    """Real time, which a test may move."""
    return MockClock(rate=1)


def mail_to(recipient: str) -> str:
    return f"To: {recipient}\nSubject: x\n\nhi\n"


def queue_of(world: SiteMailWorld) -> QueuedSiteMails:
    return QueuedSiteMails(world.database, Spool(world.folders.mail_spool))


def delivery_of(world: SiteMailWorld) -> Delivery[ClaimedSiteMail]:
    """A second process's."""
    alert = DeliveryAlert.of_site_mail(world.database)
    return Delivery(world.database, queue_of(world), world.relay.settings(), alert)


async def now(world: SiteMailWorld) -> None:
    """Let the pause before the next attempt pass."""
    await world.database.execute("UPDATE site_mails SET attempt_at = now()")


async def test_a_temporary_answer_is_tried_again_and_a_final_one_is_not(world: SiteMailWorld) -> None:
    await world.send()
    world.relay.to_recipients = ["450 greylisted"]
    await world.step(DELIVERY)
    [waiting] = await world.rows()
    await now(world)
    await world.step(DELIVERY)
    await world.relay.next()
    await world.send()
    world.relay.to_recipients = ["550 no such user"]
    await world.step(DELIVERY)
    states = {row["state"]: row["error"] for row in await world.rows()}

    assert (waiting["state"], waiting["error"]) == ("queued", "450 greylisted")
    assert waiting["attempt_at"] > waiting["accepted_at"] + timedelta(seconds=20)
    assert states == {"sent": None, "failed": "550 no such user"}
    assert world.spooled == []


async def test_a_refused_sender_fails_its_own_mail_alone(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(server: object, session: object, envelope: object, address: str, options: object) -> str:
        return "553 not your domain"

    await world.send()
    monkeypatch.setattr(world.relay, "handle_MAIL", refuse, raising=False)
    world.relay.stop()
    world.relay.start()
    await world.step(DELIVERY)

    [row] = await world.rows()
    assert (row["state"], row["error"]) == ("failed", "553 not your domain")
    assert await world.alerts(SITE_MAIL) == []


async def test_a_message_stays_until_its_last_recipient_has_it(world: SiteMailWorld) -> None:
    await world.send("To: a@b.example, b@b.example\n\nhi\n")
    world.relay.to_recipients = ["250 OK", "450 later"]

    await world.step(DELIVERY)
    first = list(world.spooled)
    await now(world)
    await world.step(DELIVERY)

    assert len(first) == 1
    assert world.spooled == []


async def test_a_large_message_with_eight_bits_arrives_as_it_was_written(world: SiteMailWorld) -> None:
    lines = "".join(f"{number} Grüße {'x' * 60}\n.{number}\n" for number in range(30_000))

    await world.send(f"From: a@shop.example\nTo: bob@example.net\n\n{lines}")
    await world.step(DELIVERY)

    mail = await world.relay.next()
    assert mail.raw.partition(b"\r\n\r\n")[2] == lines.replace("\n", "\r\n").encode()


async def test_a_relay_that_is_away_takes_no_attempt_from_what_waits(world: SiteMailWorld) -> None:
    await world.send()
    await world.send()
    world.relay.stop()

    await world.step(DELIVERY)
    rows = await world.rows()

    assert [row["attempts"] for row in rows] == [0, 0]
    assert all("localhost" in row["error"] for row in rows)


@pytest.mark.parametrize("vanishes", [False, True])
async def test_a_relay_that_ends_each_session_after_two_mails_is_no_failure(
    world: SiteMailWorld, *, vanishes: bool
) -> None:
    await world.send(mail_to(", ".join(f"u{number}@example.net" for number in range(7))))
    world.relay.per_session, world.relay.vanishes = 2, vanishes
    world.relay.to_recipients = ["450 greylisted", "550 no such user"]
    delivery = delivery_of(world)

    await delivery.round()
    states = sorted((row["state"], row["attempts"]) for row in await world.rows())

    assert states == [("failed", 1), ("queued", 1), *[("sent", 1)] * 5]
    assert world.relay.waiting == 5


async def test_a_mail_that_ends_every_session_waits_and_the_others_do_not(world: SiteMailWorld) -> None:
    await world.send(mail_to("a@example.net, b@example.net"))
    world.relay.to_recipients = ["250 OK", "421 bye", "421 bye"]

    await world.step(DELIVERY)
    first = {row["state"]: (row["attempts"], row["error"]) for row in await world.rows()}

    assert first["sent"] == (1, None)
    assert first["queued"][0] == 1
    assert "it has ended the session" in first["queued"][1]


async def test_a_relay_that_answers_a_mail_closes_the_alert(
    world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(alert, "ALERT_AFTER", 0.0)
    await world.send()
    world.relay.stop()
    await world.step(DELIVERY)
    opened = await world.alerts(SITE_MAIL)
    world.relay.start()
    world.relay.to_recipients = ["450 greylisted"]
    mock_clock.jump(FIRST_PAUSE)
    await now(world)

    await world.step(DELIVERY)

    assert len(opened) == 1
    assert await world.alerts(SITE_MAIL) == []


async def test_a_mail_that_the_relay_took_without_an_answer_is_sent_again(world: SiteMailWorld) -> None:
    await world.send()
    world.relay.to_texts = [VANISH]
    await world.step(DELIVERY)
    taken = await world.relay.next()
    await now(world)
    restarted = delivery_of(world)

    await restarted.round()

    again = await world.relay.next()
    assert again.message["Message-ID"] == taken.message["Message-ID"]
    assert [row["attempts"] for row in await world.rows()] == [2]


async def test_what_the_relay_took_is_not_sent_twice_while_the_database_is_away(
    world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AwayError(Exception):
        pass

    async def away(mails: QueuedSiteMails, mail: ClaimedSiteMail) -> None:
        raise AwayError

    await world.send()
    stored = QueuedSiteMails.sent
    monkeypatch.setattr(QueuedSiteMails, "sent", away)
    for _ in range(2):
        with pytest.raises(AwayError):
            await world.step(DELIVERY)
        await now(world)
    monkeypatch.setattr(QueuedSiteMails, "sent", stored)
    await world.step(DELIVERY)

    await world.relay.next()
    assert world.relay.waiting == 0
    assert [row["state"] for row in await world.rows()] == ["sent"]


async def test_sites_take_turns(world: SiteMailWorld) -> None:
    other = await site_row(world.database, world.owner, "other.example")

    async def work(tx: Transaction) -> None:
        for site_id, number in ((world.site.id, 50), (other, 1)):
            recipients = [f"u{at}@{'many' if number > 1 else 'one'}.example" for at in range(number)]
            mail = queue.NewSiteMail(
                message=uuid4(), site_id=site_id, sender="a@b.example", recipients=recipients, script=None, bytes=1
            )
            await queue.add(tx, mail)

    await world.database.transact(work)
    due = await queue_of(world).due(50)

    rows = {row["id"]: row["recipient"] for row in await world.rows()}
    assert any(rows[mail_id].endswith("@one.example") for mail_id in due[:2])


async def test_a_mail_fails_after_three_days(world: SiteMailWorld) -> None:
    await world.send()
    await world.database.execute(
        "UPDATE site_mails SET deadline_at = deadline_at - interval '3 days', error = '450 full'"
    )

    await world.step(DELIVERY)

    [row] = await world.rows()
    assert (row["state"], row["error"]) == ("failed", "not delivered in time: 450 full")
    assert world.spooled == []


async def test_messages_without_a_queued_mail_are_swept(world: SiteMailWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.send()
    [kept] = world.spooled
    folder = world.folders.mail_spool
    for name in (uuid4().hex, f"{uuid4().hex}.part"):
        (folder / name).touch()
    await world.step("removal of sites' messages")
    fresh = len(world.spooled)
    monkeypatch.setattr(spool, "_FRESH_SECONDS", -1.0)

    await world.step("removal of sites' messages")
    swept = list(world.spooled)
    await world.database.execute("DELETE FROM sites")
    await world.step("removal of sites' messages")

    assert (fresh, swept) == (3, [kept])
    assert world.spooled == []


async def test_queued_mails_are_cancelled_and_retried(world: SiteMailWorld) -> None:
    await world.send()
    [row] = await world.rows()
    await world.database.execute("UPDATE site_mails SET attempt_at = now() + interval '1 hour'")

    await world.database.transact(lambda tx: queue.retry(tx, row["id"]))
    due = await queue_of(world).due(50)
    cancelled = await world.database.transact(lambda tx: queue.cancel_queued(tx, world.site.id, "by ada"))
    with pytest.raises(ServiceError) as refused:
        await world.database.transact(lambda tx: queue.retry(tx, row["id"]))

    assert due == [row["id"]]
    assert cancelled == 1
    assert refused.value.code is ErrorCode.CONFLICT
    assert [row["error"] for row in await world.rows()] == ["by ada"]


async def test_old_rows_are_removed(world: SiteMailWorld) -> None:
    await world.send()
    await world.step(DELIVERY)
    await world.database.execute("UPDATE site_mails SET ended_at = ended_at - interval '31 days'")

    await world.step("retention")

    assert await world.rows() == []
