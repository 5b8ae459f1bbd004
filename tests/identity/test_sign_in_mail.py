"""A sign-in from where the account was not signed in to before is told to its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from svc.identity import mail_texts, notices
from svc.identity.settings import Settings
from svc_actors.mail import queue
from svc_actors.store import Database
from tests.support.harness import PASSWORD, Client
from tests.support.identity import MAIL, IdentityHarness, open_identity

EMAIL = "ada@example.org"
HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture
async def world(database: Database) -> AsyncIterator[IdentityHarness]:
    """With somebody who has not signed in yet."""
    async with open_identity(database, mail=MAIL) as opened:
        await opened.person(EMAIL)
        yield opened


async def sign_in(client: Client, *, password: str = PASSWORD, user_agent: str = "Firefox 148") -> int:
    answer = await client.post("/auth/login", {"email": EMAIL, "password": password}, **{"User-Agent": user_agent})
    return answer.status_code


async def test_the_first_sign_in_and_those_from_the_same_place_need_no_mail(world: IdentityHarness) -> None:
    browser = world.browser(HOME)

    assert [await sign_in(browser) for _ in range(3)] == [200, 200, 200]

    assert await world.mails() == []


async def test_an_unknown_browser_is_told_with_where_it_is(world: IdentityHarness) -> None:
    await sign_in(world.browser(HOME))

    await sign_in(world.browser(HOME), user_agent="Chromium 144")

    [mail] = await world.mails()
    assert mail.recipient == EMAIL
    assert mail.subject == "New sign-in to Virtual machines"
    assert "from a browser that we do not know yet" in mail.text
    assert f"Address:  {HOME}" in mail.text
    assert "Browser:  Chromium 144" in mail.text
    assert "https://controller.test/#/forgot-password" in mail.text


def test_what_a_browser_says_of_itself_is_one_line_of_plain_letters() -> None:
    at = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)

    _, text = mail_texts.sign_in(
        Settings(), "Ada", at, HOME, "Firefox\r\n\r\nClick ü\u202e" + "x" * 500, "a browser", ""
    )

    [line] = [line for line in text.splitlines() if "Browser:" in line]
    assert line.startswith("    Browser:  Firefox????Click ??xxx")
    assert len(line) < 250


async def test_an_unknown_address_is_told(world: IdentityHarness) -> None:
    browser = world.browser(HOME)
    await sign_in(browser)
    moved = world.browser(ELSEWHERE)
    moved.http.cookies = browser.http.cookies

    await sign_in(moved)
    await sign_in(moved)

    [mail] = await world.mails()
    assert "from an address that we do not know yet" in mail.text
    assert ELSEWHERE in mail.text


async def test_what_was_not_seen_for_long_is_unknown_again(world: IdentityHarness) -> None:
    browser = world.browser(HOME)
    await sign_in(browser)
    await world.database.execute("UPDATE familiar_sign_ins SET seen_at = now() - interval '91 days'")

    await sign_in(browser)

    [mail] = await world.mails()
    assert "from a browser and an address" in mail.text


async def test_who_did_not_prove_the_password_causes_no_mail(world: IdentityHarness) -> None:
    await sign_in(world.browser(HOME))

    assert await sign_in(world.browser(ELSEWHERE), password="Wrong-Password-1") == 401

    assert await world.mails() == []


async def test_who_has_the_password_cannot_fill_the_mailbox(world: IdentityHarness) -> None:
    await sign_in(world.browser(HOME))

    for _ in range(notices.MAILS_AN_HOUR + 3):
        assert await sign_in(world.browser(ELSEWHERE)) == 200

    assert len(await world.mails()) == notices.MAILS_AN_HOUR


async def test_a_full_queue_keeps_nobody_from_signing_in(
    world: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(world.browser(HOME))
    monkeypatch.setattr(queue, "MOST_QUEUED", 0)
    browser = world.browser(ELSEWHERE)

    assert await sign_in(browser) == 200

    assert (await browser.get("/me")).status_code == 200
    assert await world.mails() == []
