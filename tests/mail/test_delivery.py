"""The queue of mail against a real SMTP server: what is written arrives, whatever happens in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from svc_actors.mail import MailKind, NewMail
from svc_actors.mail import queue as queue_module
from svc_actors.mail import relay as relay_module
from svc_actors.mail.alert import DeliveryAlert
from svc_actors.mail.queue import ClaimedMail, QueuedMails
from svc_actors.mail.relay import Deferred, Rejected, Sent
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError
from tests.mail.conftest import Queue, queue_for
from tests.support.certificates import self_signed
from tests.support.smtp import VANISH, WAIT, MailServer, mail_server, password_file


@pytest.fixture
def mock_clock() -> MockClock:
    """Real time, which a test may move."""
    return MockClock(rate=1)


async def open_alert(database: Database) -> tuple[str, str] | None:
    row = await database.fetchrow("SELECT severity, message FROM alerts WHERE key = 'mail' AND closed_at IS NULL")
    return None if row is None else (row["severity"], row["message"])


async def until_alert(database: Database, *, there: bool) -> tuple[str, str] | None:
    with trio.fail_after(WAIT):
        while ((alert := await open_alert(database)) is not None) is not there:
            await trio.sleep(0.01)
    return alert


async def test_what_is_written_arrives_and_its_text_is_kept_no_longer(queue: Queue, relay: MailServer) -> None:
    async with queue.delivering():
        mail_id = await queue.write("Grüße", text="Überschrift: ein Link https://controller.example/#/x?token=secret\n")

        mail = await relay.next()
        row = await queue.until(mail_id, "state = 'sent'")

    assert (mail.sender, mail.recipients) == ("svc@example.org", ["ada@example.net"])
    assert mail.message["From"] == "Example Hosting <svc@example.org>"
    assert mail.message["Subject"] == "Grüße"
    assert mail.message["Message-ID"] == f"<{mail_id.hex}@example.org>"
    assert mail.message["Auto-Submitted"] == "auto-generated"
    assert mail.message.get_content_type() == "text/plain"
    assert "token=secret" in mail.text
    assert "Überschrift" in mail.text
    assert max(mail.raw) < 128, "seven bits"
    assert (row["content"], row["error"]) == (None, None)


async def test_a_waiting_text_is_not_in_the_database_in_the_clear(queue: Queue) -> None:
    mail_id = await queue.write(text="token=secret\n")

    assert b"secret" not in (await queue.row(mail_id))["content"]


async def test_a_mail_is_there_if_and_when_its_cause_is(queue: Queue, relay: MailServer) -> None:
    async def write_and_fail(tx: Transaction) -> None:
        lost = NewMail(kind=MailKind.TEST, recipient="a@b.example", subject="lost", text="", lasts=timedelta(hours=1))
        await queue.outbox.write(tx, lost)
        raise LookupError

    async with queue.delivering():
        with pytest.raises(LookupError):
            await queue.database.transact(write_and_fail)
        await queue.write("kept")

        assert (await relay.next()).message["Subject"] == "kept"

    assert await queue.database.fetchval("SELECT count(*) FROM mails") == 1


async def test_a_temporary_refusal_is_tried_again_with_the_same_message_id(queue: Queue, relay: MailServer) -> None:
    relay.to_recipients = ["451 4.7.1 greylisted, try again"]
    async with queue.delivering():
        mail_id = await queue.write()
        waiting = await queue.until(mail_id, "error IS NOT NULL")
        await queue.now(mail_id)

        mail = await relay.next()
        done = await queue.until(mail_id, "state = 'sent'")

    assert (waiting["state"], waiting["error"]) == ("queued", "451 4.7.1 greylisted, try again")
    assert waiting["attempt_at"] - waiting["created_at"] > timedelta(seconds=20), "there is a pause"
    assert mail.message["Message-ID"] == waiting["message_id"]
    assert done["attempts"] == 2


@pytest.mark.parametrize("where", ["to_recipients", "to_texts"])
async def test_a_permanent_refusal_is_final_and_concerns_that_mail_alone(
    queue: Queue, relay: MailServer, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    setattr(relay, where, ["550 5.1.1 no such\ruser ada@example.net"])
    async with queue.delivering():
        refused = await queue.write("refused")
        failed = await queue.until(refused, "state = 'failed'")
        await queue.write("next")

        assert (await relay.next()).message["Subject"] == "next"

    assert failed["attempts"] == 1
    assert failed["error"].startswith("550 5.1.1 no such")
    assert "\r" not in failed["error"]
    logged = capfd.readouterr().out
    assert "mail.rejected" in logged
    assert "ada@example.net" not in logged, "who is in the log is in a support bundle"


async def test_a_failed_mail_can_be_tried_again(queue: Queue, relay: MailServer) -> None:
    relay.to_recipients = ["550 5.1.1 no such user"]
    async with queue.delivering():
        mail_id = await queue.write()
        await queue.until(mail_id, "state = 'failed'")

        await queue.database.transact(lambda tx: queue_module.retry(tx, mail_id))

        assert (await relay.next()).message["Message-ID"] == f"<{mail_id.hex}@example.org>"
        await queue.until(mail_id, "state = 'sent'")
    with pytest.raises(ServiceError) as refused:
        await queue.database.transact(lambda tx: queue_module.retry(tx, mail_id))
    assert refused.value.code is ErrorCode.CONFLICT


async def test_a_relay_that_is_away_is_waited_for_and_nothing_is_lost(queue: Queue, relay: MailServer) -> None:
    relay.stop()
    ids = [await queue.write(f"mail {number}") for number in range(5)]
    async with queue.delivering():
        waiting = await queue.until(ids[0], "error IS NOT NULL")
        relay.start()
        await queue.now(ids[0])

        subjects = {(await relay.next()).message["Subject"] for _ in ids}

    assert f"localhost:{relay.port}" in waiting["error"]
    assert waiting["attempts"] == 0, "the relay's absence is no attempt of the mail"
    assert subjects == {f"mail {number}" for number in range(5)}


async def test_a_relay_that_ends_each_session_after_two_mails_delays_none(queue: Queue, relay: MailServer) -> None:
    relay.per_session = 2
    ids = [await queue.write(f"mail {number}") for number in range(5)]
    async with queue.delivering():
        rows = [await queue.until(mail_id, "state = 'sent'") for mail_id in ids]

    assert [row["attempts"] for row in rows] == [1] * 5


async def test_a_service_killed_before_the_mail_was_taken_sends_it_after_its_restart(
    queue: Queue, relay: MailServer
) -> None:
    relay.stop()
    async with queue.delivering():
        mail_id = await queue.write()
        await queue.until(mail_id, "error IS NOT NULL")
    relay.start()

    async with queue.delivering():
        assert (await relay.next()).message["Message-ID"] == f"<{mail_id.hex}@example.org>"


async def test_a_relay_killed_before_its_answer_gets_the_mail_once_more_and_as_the_same_one(
    queue: Queue, relay: MailServer
) -> None:
    relay.to_texts = [VANISH]
    async with queue.delivering():
        mail_id = await queue.write()
        first = await relay.next()
        await queue.until(mail_id, "error IS NOT NULL")
    relay.stop()
    relay.start()
    async with queue.delivering():
        await queue.now(mail_id)
        second = await relay.next()
        await queue.until(mail_id, "state = 'sent'")

    assert first.message["Message-ID"] == second.message["Message-ID"]
    assert relay.texts == [first.message["Message-ID"]] * 2


async def test_a_mail_whose_outcome_cannot_be_stored_is_not_sent_again(
    queue: Queue, relay: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[UUID] = []
    store = QueuedMails.sent

    async def full_disk_at_first(mails: QueuedMails, mail: ClaimedMail) -> None:
        stored.append(mail.id)
        if len(stored) < 3:
            raise ServiceError(ErrorCode.UNAVAILABLE, "the disk is full")
        await store(mails, mail)

    monkeypatch.setattr(QueuedMails, "sent", full_disk_at_first)
    async with queue.delivering():
        mail_id = await queue.write()
        await queue.database.execute("UPDATE mails SET attempt_at = now() WHERE id = $1", mail_id)

        await relay.next()
        await queue.until(mail_id, "state = 'sent'")

    assert len(stored) == 3
    assert len(relay.texts) == 1


async def test_what_is_not_delivered_in_time_fails_and_a_link_that_ran_out_is_forgotten(
    queue: Queue, relay: MailServer
) -> None:
    relay.stop()
    kept = await queue.write()
    gone = await queue.write(perishable=True)
    await queue.database.execute("UPDATE mails SET deadline_at = now()")
    async with queue.delivering():
        row = await queue.until(kept, "state = 'failed'")
        perished = await queue.until(gone, "state = 'failed'")

    assert row["content"] is not None
    assert perished["content"] is None
    assert "not delivered in time" in perished["error"]
    with pytest.raises(ServiceError, match="has expired"):
        await queue.database.transact(lambda tx: queue_module.retry(tx, gone))
    relay.start()
    async with queue.delivering():
        await queue.database.transact(lambda tx: queue_module.retry(tx, kept))
        assert (await relay.next()).message["Message-ID"] == row["message_id"]


async def test_a_full_queue_takes_no_more(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MOST_QUEUED", 3)
    for _ in range(3):
        await queue.write()

    with pytest.raises(ServiceError) as refused:
        await queue.write()

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert await queue.database.fetchval("SELECT count(*) FROM mails") == 3


async def test_mail_that_cannot_be_delivered_for_long_is_an_alert_until_some_is(
    queue: Queue, relay: MailServer, mock_clock: MockClock
) -> None:
    relay.stop()
    async with queue.delivering():
        mail_id = await queue.write()
        await queue.until(mail_id, "error IS NOT NULL")
        assert await open_alert(queue.database) is None
        mock_clock.jump(1000)
        await queue.now(mail_id)

        alert = await until_alert(queue.database, there=True)
        relay.start()
        await queue.now(mail_id)
        await relay.next()

        await until_alert(queue.database, there=False)
    assert alert is not None
    assert alert[0] == "critical"
    assert f"localhost:{relay.port}" in alert[1]


async def test_one_recipient_that_is_never_ready_is_a_warning_without_a_name(
    queue: Queue, relay: MailServer, mock_clock: MockClock
) -> None:
    relay.to_recipients = ["452 4.2.2 mailbox of ada@example.net full"] * 2
    async with queue.delivering():
        mail_id = await queue.write()
        await queue.until(mail_id, "error IS NOT NULL")
        mock_clock.jump(1000)
        await queue.now(mail_id)

        alert = await until_alert(queue.database, there=True)

    assert alert is not None
    assert alert[0] == "warning"
    assert "452" in alert[1]
    assert "ada" not in alert[1]


async def test_refusals_for_good_do_not_hide_that_all_other_mail_waits(
    database: Database, mock_clock: MockClock
) -> None:
    alert = DeliveryAlert.of_own_mail(database)
    opened = None
    for _ in range(4):
        alert.answered(Deferred(452, "full"))
        alert.answered(Rejected(550, "no such user"))
        await alert.tell()
        opened = await open_alert(database)
        mock_clock.jump(600)
    alert.answered(Rejected(550, "no such user"))
    await alert.tell()
    still = await open_alert(database)
    alert.answered(Sent())
    await alert.tell()

    assert (
        opened == still == ("warning", "Mail cannot be delivered: the relay answers 452 (svc mail list has the rest)")
    )
    assert await open_alert(database) is None


@pytest.mark.parametrize("implicit", [False, True])
async def test_mail_goes_over_tls_with_a_password(database: Database, tmp_path: Path, implicit: bool) -> None:
    certificate = self_signed(tmp_path)
    async with mail_server(tls=certificate, implicit=implicit, login=("svc", "hunter2")) as relay:
        password = password_file(tmp_path, "hunter2")
        queue = queue_for(
            database,
            relay.settings(ca_file=str(certificate.certificate), username="svc", password_file=password),
        )
        async with queue.delivering():
            await queue.write()

            mail = await relay.next()

    assert (mail.encrypted, mail.signed_in) == (True, True)


@pytest.mark.parametrize("implicit", [False, True])
async def test_a_certificate_that_nobody_vouches_for_is_refused(
    database: Database, tmp_path: Path, implicit: bool
) -> None:
    async with mail_server(tls=self_signed(tmp_path), implicit=implicit) as relay:
        queue = queue_for(database, relay.settings())
        async with queue.delivering():
            mail_id = await queue.write()

            waiting = await queue.until(mail_id, "error IS NOT NULL")

    assert "certificate" in waiting["error"]
    assert (waiting["state"], relay.texts) == ("queued", [])


async def test_a_certificate_of_another_name_is_refused(database: Database, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    async with mail_server(tls=certificate) as relay:
        queue = queue_for(database, relay.settings(host="127.0.0.1", ca_file=str(certificate.certificate)))
        async with queue.delivering():
            mail_id = await queue.write()

            waiting = await queue.until(mail_id, "error IS NOT NULL")

    assert "certificate" in waiting["error"]
    assert relay.texts == []


async def test_a_relay_without_starttls_is_told_nothing(database: Database, relay: MailServer, tmp_path: Path) -> None:
    settings = relay.settings(security="starttls", username="svc", password_file=password_file(tmp_path, "hunter2"))
    queue = queue_for(database, settings)
    async with queue.delivering():
        mail_id = await queue.write()

        waiting = await queue.until(mail_id, "error IS NOT NULL")

    assert "STARTTLS" in waiting["error"]
    assert relay.texts == []


async def test_a_wrong_password_stops_no_mail_for_good_and_is_told_nowhere(
    database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    certificate = self_signed(tmp_path)
    async with mail_server(tls=certificate, login=("svc", "hunter2")) as relay:
        password = password_file(tmp_path, "Wrong-Password-1")
        settings = relay.settings(ca_file=str(certificate.certificate), username="svc", password_file=password)
        queue = queue_for(database, settings)
        async with queue.delivering():
            mail_id = await queue.write()
            waiting = await queue.until(mail_id, "error IS NOT NULL")
            password_file(tmp_path, "hunter2")
            await queue.now(mail_id)

            await relay.next()

    assert "535" in waiting["error"]
    said = capfd.readouterr()
    assert "Wrong-Password-1" not in said.out + said.err + waiting["error"] + repr(settings) + str(settings)


async def test_of_many_mails_each_arrives_once(queue: Queue, relay: MailServer) -> None:
    ids = {await queue.write() for _ in range(120)}
    async with queue.delivering():
        arrived = [(await relay.next()).message["Message-ID"] for _ in ids]

    assert sorted(arrived) == sorted(f"<{mail_id.hex}@example.org>" for mail_id in ids)


@asynccontextmanager
async def silent_relay() -> AsyncIterator[int]:
    """The port of a server that takes connections and says nothing."""
    async with trio.open_nursery() as nursery:

        async def hold(stream: trio.SocketStream) -> None:
            async with stream:
                await trio.sleep_forever()

        [listener] = await nursery.start(partial(trio.serve_tcp, hold, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_a_relay_that_says_nothing_is_given_up(
    database: Database, relay: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "ANSWER_SECONDS", 0.2)
    async with silent_relay() as port:
        queue = queue_for(database, relay.settings(port=str(port), host="127.0.0.1"))
        async with queue.delivering():
            mail_id = await queue.write()

            waiting = await queue.until(mail_id, "error IS NOT NULL")

    assert "timed out" in waiting["error"]
    assert waiting["state"] == "queued"


async def test_a_service_that_stops_does_not_wait_for_the_relay(database: Database, relay: MailServer) -> None:
    async with silent_relay() as port:
        queue = queue_for(database, relay.settings(port=str(port), host="127.0.0.1"))
        with trio.fail_after(5):
            async with queue.delivering():
                mail_id = await queue.write()
                await trio.testing.wait_all_tasks_blocked(0.05)

    assert (await queue.row(mail_id))["state"] == "queued"


async def test_what_is_over_is_removed_after_its_time_and_what_waits_never(queue: Queue, relay: MailServer) -> None:
    async with queue.delivering():
        old = await queue.write("old")
        await queue.until(old, "state = 'sent'")
        recent = await queue.write("recent")
        await queue.until(recent, "state = 'sent'")
    waiting = await queue.write("waiting")
    await queue.database.execute("UPDATE mails SET created_at = created_at - interval '31 days'")
    await queue.database.execute("UPDATE mails SET ended_at = ended_at - interval '31 days' WHERE id = $1", old)

    removed = await queue_module.remove_ended_mails(queue.database, timedelta(days=30))

    assert removed == 1
    assert {row["id"] for row in await queue.database.fetch("SELECT id FROM mails")} == {recent, waiting}
