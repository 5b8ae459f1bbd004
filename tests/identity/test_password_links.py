"""Invitations and password resets: links that work once, for so long, and tell nobody who has an account."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
import trio

from svc.identity import password_links
from svc.identity.password_links import ResetRequests
from svc.service.controller.backup import restore
from svc_actors.mail import Delivery, MailKind, NewMail, queue
from svc_actors.mail.alert import DeliveryAlert
from svc_actors.mail.queue import QueuedMails
from svc_actors.store import Database, Transaction, keep_running
from tests.support.harness import PASSWORD, Client, said
from tests.support.identity import ORIGIN, IdentityHarness, open_identity
from tests.support.smtp import MailServer, Received, mail_server

NEW = "Brand-New-Secret-9"


@dataclass
class Service(IdentityHarness):
    """People, and what brings them mail."""

    relay: MailServer | None = None

    async def next_mail(self) -> Received:
        """The next that is not about a sign-in."""
        assert self.relay is not None
        while (mail := await self.relay.next()).message["Subject"].startswith("New sign-in"):
            pass
        return mail

    async def forgot(self, email: str, address: str = "192.0.2.1") -> httpx.Response:
        return await self.browser(address).post("/auth/forgot-password", {"email": email})

    async def set(self, token: str, password: str = NEW) -> httpx.Response:
        return await self.browser().post("/auth/set-password", {"token": token, "password": password})

    async def sign_in(self, email: str, password: str) -> int:
        answer = await self.browser().post("/auth/login", {"email": email, "password": password})
        return answer.status_code

    async def answer_asks(self) -> None:
        """Those that wait are answered now, where nobody else does."""
        await ResetRequests(self.database, self.services.outbox).round()


@asynccontextmanager
async def opened(database: Database, *, answering: bool = True) -> AsyncIterator[Service]:
    async with mail_server() as relay:
        settings = relay.settings()
        async with open_identity(database, mail=settings) as world, trio.open_nursery() as nursery:
            outbox = world.services.outbox
            alert = DeliveryAlert.of_own_mail(database)
            delivery = Delivery(database, QueuedMails(database, outbox), settings, alert)
            nursery.start_soon(keep_running, "mail", delivery.run)
            if answering:
                nursery.start_soon(keep_running, "password asks", ResetRequests(database, outbox).run)
            yield Service(**vars(world), relay=relay)
            nursery.cancel_scope.cancel()


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    async with opened(database) as service:
        yield service


@pytest.fixture
async def quiet(database: Database) -> AsyncIterator[Service]:
    """A service that answers those who ask when a test has it do so."""
    async with opened(database, answering=False) as service:
        yield service


async def administrator(service: Service) -> Client:
    await service.person("root@example.org", "administrator")
    return await service.signed_in("root@example.org")


def token_of(mail: Received) -> str:
    [token] = re.findall(rf"{re.escape(ORIGIN)}/#/set-password\?token=([\w-]+)", mail.text)
    return str(token)


async def invited(service: Service, root: Client, email: str = "ida@example.net") -> tuple[UUID, str]:
    made = await root.post("/users", {"email": email, "name": "New Person", "invite": True})
    assert made.status_code == 201, made.text
    return UUID(made.json()["id"]), token_of(await service.next_mail())


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Everything that this task asks the database meanwhile."""
    seen: list[str] = []
    task = trio.lowlevel.current_task()
    with monkeypatch.context() as patch:
        for kind in (Database, Transaction):
            patch.setattr(kind, "_perform", watched(kind._perform, seen, task))
        yield seen


def watched(
    perform: Callable[..., Awaitable[Any]], seen: list[str], task: trio.lowlevel.Task
) -> Callable[..., Awaitable[Any]]:
    async def noted(self: object, sql: str, *rest: Any) -> Any:
        if trio.lowlevel.current_task() is task:
            seen.append(sql)
        return await perform(self, sql, *rest)

    return noted


# Invitations


async def test_an_invited_person_chooses_a_password_and_signs_in(service: Service) -> None:
    root = await administrator(service)

    made = await root.post("/users", {"email": "ida@example.net", "name": "New Person", "invite": True})
    mail = await service.next_mail()
    chosen = await service.set(token_of(mail))

    assert made.status_code == 201
    assert mail.recipients == ["ida@example.net"]
    assert "New Person" in mail.text
    assert chosen.status_code == 204
    assert await service.sign_in("ida@example.net", NEW) == 200
    [row] = [row for row in await service.audit() if row["operation"] == "password.set"]
    assert (row["operation"], row["actor"], row["target_name"]) == (
        "password.set",
        "ida@example.net",
        "ida@example.net",
    )


async def test_an_invitation_is_sent_again_and_the_first_ends(service: Service) -> None:
    root = await administrator(service)
    user_id, first = await invited(service, root)

    again = await root.post(f"/users/{user_id}/invite")
    second = token_of(await service.next_mail())

    assert again.json()["email"] == "ida@example.net"
    assert (await service.set(first)).status_code == 403
    assert (await service.set(second)).status_code == 204
    assert (await root.post(f"/users/{user_id}/invite")).status_code == 409, "there is a password now"


async def test_nobody_is_added_whose_invitation_cannot_be_queued(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await administrator(service)
    monkeypatch.setattr(queue, "MOST_QUEUED", 0)

    refused = await root.post("/users", {"email": "ida@example.net", "name": "New", "invite": True})

    assert refused.status_code == 503
    assert (await root.get("/users?q=ida@")).json()["total"] == 0


async def test_an_invitation_and_a_password_contradict_each_other(service: Service) -> None:
    root = await administrator(service)

    refused = await root.post("/users", {"email": "n@example.net", "name": "N", "invite": True, "password": PASSWORD})

    assert refused.status_code == 400
    assert "invite" in refused.text


async def test_inviting_is_the_administrators(service: Service) -> None:
    root = await administrator(service)
    user_id, _ = await invited(service, root)
    await service.person("ada@example.org")
    await service.person("staff@example.org", "staff")

    for email in ("ada@example.org", "staff@example.org"):
        assert (await (await service.signed_in(email)).post(f"/users/{user_id}/invite")).status_code == 403
    assert (await service.browser().post(f"/users/{user_id}/invite")).status_code == 401


async def test_a_suspended_person_is_not_invited_and_their_link_does_not_work(service: Service) -> None:
    root = await administrator(service)
    user_id, token = await invited(service, root)
    await root.post(f"/admin/users/{user_id}/suspend", {"reason": "r"})

    assert (await root.post(f"/users/{user_id}/invite")).status_code == 409
    assert (await service.set(token)).status_code == 403


async def test_a_link_to_an_address_that_was_changed_opens_nothing(service: Service) -> None:
    root = await administrator(service)
    user_id, token = await invited(service, root)
    await root.call("PATCH", f"/users/{user_id}", {"email": "other@example.net"})

    assert (await service.set(token)).status_code == 403


async def test_a_password_that_an_administrator_sets_ends_links(service: Service) -> None:
    root = await administrator(service)
    user_id, token = await invited(service, root)
    await root.post(f"/admin/users/{user_id}/password", {"password": "Another-Secret-7"})

    assert (await service.set(token)).status_code == 403


# Resets


async def test_a_reset_sets_the_password_ends_every_session_and_leaves_tokens(service: Service) -> None:
    user_id = await service.person("ada@example.org")
    browsers = [await service.signed_in("ada@example.org") for _ in range(2)]
    program = service.program(await service.token(user_id))

    asked = await service.forgot(" ADA@example.org ")
    token = token_of(await service.next_mail())
    chosen = await service.set(token)

    assert (asked.status_code, asked.content) == (204, b"")
    assert chosen.status_code == 204
    assert [(await browser.get("/me")).status_code for browser in browsers] == [401, 401]
    assert (await program.get("/me")).status_code == 200
    assert await service.sign_in("ada@example.org", PASSWORD) == 401
    assert await service.sign_in("ada@example.org", NEW) == 200


async def test_a_link_works_once_also_when_it_is_used_twice_at_once(service: Service) -> None:
    await service.person("ada@example.org")
    await service.forgot("ada@example.org")
    token = token_of(await service.next_mail())
    answers: list[int] = []

    async def use(password: str) -> None:
        answers.append((await service.set(token, password)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(use, f"Password-Number-{number}")

    assert sorted(answers) == [204, 403, 403, 403]
    assert (await service.set(token)).status_code == 403


async def test_a_link_ends_with_its_time(service: Service) -> None:
    await service.person("ada@example.org")
    await service.forgot("ada@example.org")
    token = token_of(await service.next_mail())
    await service.database.execute("UPDATE password_links SET expires_at = now()")

    refused = await service.set(token)

    assert refused.status_code == 403
    assert "no longer works" in refused.text
    assert await service.sign_in("ada@example.org", PASSWORD) == 200


async def test_a_refused_password_leaves_the_link_as_it_is(service: Service) -> None:
    await service.person("ada@example.org")
    await service.forgot("ada@example.org")
    token = token_of(await service.next_mail())

    for bad in ("Short-1a", "alllowercaseletters", "Ada-ada-ADA-12"):
        assert (await service.set(token, bad)).status_code == 400, bad

    assert (await service.set(token)).status_code == 204


async def test_a_guessed_token_costs_no_hash(service: Service) -> None:
    before = service.services.passwords.hashed

    assert (await service.set("guess")).status_code == 403

    assert service.services.passwords.hashed == before


async def test_asking_says_the_same_of_everybody_and_does_not_look_anybody_up(database: Database) -> None:
    async with opened(database, answering=False) as service:
        await service.person("ada@example.org")
        suspended = await service.person("eve@example.org")
        await service.database.execute("UPDATE users SET suspended_at = now(), suspension_reason = 'r' WHERE id = $1",
                                       suspended)  # fmt: skip
        answers = []
        async with database.transaction() as tx:
            # Who looked into the table of people would wait for this.
            await tx.execute("LOCK TABLE users IN ACCESS EXCLUSIVE MODE")
            with trio.fail_after(60):
                for email in ("ada@example.org", "eve@example.org", "nobody@example.org", "not an address"):
                    answer = await service.forgot(email)
                    answers.append((answer.status_code, answer.content, sorted(set(answer.headers) - {"x-request-id"})))

    assert len({str(answer) for answer in answers}) == 1
    assert answers[0][0] == 204


async def test_asking_does_the_same_statements_for_everybody(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(database, answering=False) as service:
        await service.person("ada@example.org")
        done: dict[str, list[str]] = {}
        for email in ("ada@example.org", "bob@example.org"):
            with statements(monkeypatch) as seen:
                await service.forgot(email)
            done[email] = seen

    assert done["ada@example.org"] == done["bob@example.org"]
    assert any("password_asks" in sql for sql in done["ada@example.org"])
    assert not any("users" in sql for sql in done["ada@example.org"])


async def test_who_has_no_account_or_is_suspended_gets_no_mail(quiet: Service) -> None:
    root = await administrator(quiet)
    user_id = await quiet.person("eve@example.org")
    await root.post(f"/admin/users/{user_id}/suspend", {"reason": "r"})

    await quiet.forgot("eve@example.org")
    await quiet.forgot("nobody@example.org")
    await quiet.answer_asks()

    assert await quiet.database.fetchval("SELECT count(*) FROM mails") == 0
    assert await quiet.database.fetchval("SELECT count(*) FROM password_links") == 0


async def test_nobody_has_a_mailbox_filled(quiet: Service) -> None:
    await quiet.person("ada@example.org")

    for number in range(8):
        assert (await quiet.forgot("ada@example.org", f"198.51.100.{number}")).status_code == 204
    await quiet.answer_asks()

    assert await quiet.database.fetchval("SELECT count(*) FROM mails") == password_links.MAILS_AN_HOUR


async def test_one_place_asks_so_often_an_hour_whoever_it_asks_about(service: Service) -> None:
    await service.person("ada@example.org")
    for number in range(password_links.ASKS_AN_HOUR):
        assert (await service.forgot(f"nobody{number}@example.org")).status_code == 204

    known, unknown = await service.forgot("ada@example.org"), await service.forgot("nobody@example.org")

    assert (known.status_code, known.json()["error"]["code"]) == (429, "rate_limited")
    assert said(known) == said(unknown)
    assert (await service.forgot("ada@example.org", "203.0.113.9")).status_code == 204, "elsewhere one may"
    await service.database.execute("UPDATE password_asks SET asked_at = asked_at - interval '1 hour'")
    assert (await service.forgot("ada@example.org")).status_code == 204


async def test_asking_survives_a_restart(database: Database) -> None:
    async with opened(database, answering=False) as service:
        await service.person("ada@example.org")
        await service.forgot("ada@example.org")

    async with opened(database) as service:
        assert (await service.set(token_of(await service.next_mail()))).status_code == 204


async def test_no_token_and_no_password_is_written_anywhere(service: Service) -> None:
    await service.person("ada@example.org")
    await service.forgot("ada@example.org")
    token = token_of(await service.next_mail())
    await service.set(token)

    tables = await service.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for table in tables:
        content = str([dict(row) for row in await service.database.fetch(f"SELECT * FROM {table['tablename']}")])
        assert token not in content, table
        assert NEW not in content.replace(f"cheap:{NEW}", ""), table


async def test_what_was_typed_is_forgotten_and_in_no_audit_row(quiet: Service) -> None:
    await quiet.forgot("my-Password-by-mistake")
    await quiet.answer_asks()

    assert "by-mistake" not in str(await quiet.audit()).lower()
    assert "by-mistake" not in str([dict(row) for row in await quiet.database.fetch("SELECT * FROM password_asks")])


async def test_without_mail_nobody_is_promised_one(database: Database) -> None:
    async with open_identity(database) as world:
        await world.person("ada@example.org")
        answers = [
            await world.browser().post("/auth/forgot-password", {"email": email})
            for email in ("ada@example.org", "nobody@example.org")
        ]

    assert {answer.status_code for answer in answers} == {409}
    assert said(answers[0]) == said(answers[1])


async def test_what_was_asked_for_and_not_answered_for_an_hour_is_forgotten(database: Database) -> None:
    async with opened(database, answering=False) as service:
        await service.person("ada@example.org")
        await service.forgot("ada@example.org")
        await database.execute("UPDATE password_asks SET asked_at = asked_at - interval '61 minutes'")

        await password_links.forget_old_links(database)

        assert await database.fetchval("SELECT count(*) FROM password_asks") == 0


async def test_after_a_restore_no_link_works_and_nothing_that_waited_is_sent(database: Database) -> None:
    async with opened(database) as service:
        root = await administrator(service)
        _, token = await invited(service, root)
        async with database.transaction() as tx:
            mail = NewMail(kind=MailKind.TEST, recipient="a@b.example", subject="", text="", lasts=timedelta(hours=1))
            waiting = await service.services.outbox.write(tx, mail)
            await tx.execute("UPDATE mails SET attempt_at = now() + interval '1 hour' WHERE id = $1", waiting)

        await restore.prepare_restored(database, datetime.now(UTC), "0.1.0")

        assert (await service.set(token)).status_code == 403
    row = await database.fetchone("SELECT state, content, error FROM mails WHERE id = $1", waiting)
    assert (row["state"], row["content"]) == ("failed", None)
    assert "restored" in row["error"]
