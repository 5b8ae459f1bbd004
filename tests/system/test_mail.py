"""Mail of a controller that is a process of its own: people in a browser, and SIGKILL at the worst moments."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from tests.support.browser import Page, open_browser
from tests.support.smtp import VANISH, WAIT, MailServer, Received, mail_server
from tests.support.stack import ROOT, Stack, fresh_controller

# Chromium gives up what it has asked for whenever an address of its host comes or goes, as with other tests' machines.
pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


@asynccontextmanager
async def mailing_controller(relay: MailServer) -> AsyncIterator[Stack]:
    """A controller that hands its mail to `relay`, set up."""
    async with fresh_controller(
        SVC_MAIL_HOST="127.0.0.1",
        SVC_MAIL_PORT=str(relay.port),
        SVC_MAIL_SECURITY="none",
        SVC_MAIL_SENDER="Example Hosting <svc@example.org>",
    ) as stack:
        await stack.set_up()
        yield stack


@pytest.fixture
async def relay() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


def link(mail: Received) -> str:
    [url] = re.findall(r"https://\S+", mail.text)
    return str(url)


async def choose(page: Page, url: str, password: str) -> None:
    await page.goto("about:blank")
    await page.goto(url)
    await page.fill("Password", password)
    await page.press("Set the password")
    await page.shows("Your password is set")
    await page.press("To the sign-in")


async def sign_in(page: Page, email: str, password: str) -> None:
    await page.fill("Email", email)
    await page.fill("Password", password)
    await page.press("Sign in")
    await page.shows("Sign out")


async def test_a_person_is_invited_and_later_forgets_the_password(relay: MailServer) -> None:
    await trio.run_process([str(ROOT / "tools" / "build-dashboard")])
    async with mailing_controller(relay) as stack, open_browser() as office, open_browser() as home:
        root = await office.open(stack.url + "/")
        await sign_in(root, stack.email, stack.password)
        new_browser = await relay.next()
        await root.press("People")
        await root.press("Create user")
        await root.fill("Email", "ida@example.net")
        await root.fill("Name", "Ida")
        await root.press("Create")
        invitation = await relay.next()

        person = await home.open("about:blank")
        await choose(person, link(invitation), "First-Password-1")
        await sign_in(person, "ida@example.net", "First-Password-1")

        await person.press("Sign out")
        await person.press("I forgot my password")
        await person.fill("Email", "ida@example.net")
        await person.press("Send me a link")
        await person.shows("a link is on its way")
        reset = await relay.next()
        await choose(person, link(reset), "Second-Password-2")
        await sign_in(person, "ida@example.net", "Second-Password-2")

        await person.goto("about:blank")
        await person.goto(link(reset))
        await person.fill("Password", "Third-Password-3")
        await person.press("Set the password")
        await person.shows("no longer works")
        await root.press("Alerts")
        await root.fill("Mail to me", "warning")
        await root.shows("Saved")
    assert new_browser.recipients == [stack.email]
    assert "/#/forgot-password" in link(new_browser)
    assert invitation.recipients == reset.recipients == ["ida@example.net"]
    assert [line for line in person.complaints + root.complaints if "Security" in line] == []


async def send(client: Client) -> dict[str, Any]:
    return dict(await client.call("POST", "/mails/test", body={}))


async def until_sent(stack: Stack, number: int) -> None:
    with trio.fail_after(WAIT):
        async with stack.client() as client:
            while (await client.call("GET", "/mails", query={"state": "sent"}))["total"] < number:
                await trio.sleep(0.1)


async def test_what_was_queued_outlives_a_kill(relay: MailServer) -> None:
    async with mailing_controller(relay) as stack:
        relay.stop()
        async with stack.client() as client:
            sent = [(await send(client))["message_id"] for _ in range(5)]
        await stack.controller.kill()
        relay.start()

        await stack.start_controller()

        arrived = [(await relay.next()).message["Message-ID"] for _ in sent]
        await until_sent(stack, 5)
    assert sorted(arrived) == sorted(sent)
    assert len(relay.texts) == 5


async def test_a_kill_before_the_relays_answer_costs_one_duplicate_that_is_known_by_its_id(relay: MailServer) -> None:
    async with mailing_controller(relay) as stack:
        relay.to_texts = [VANISH]
        async with stack.client() as client:
            mail = await send(client)
        first = await relay.next()
        await stack.controller.kill()

        await stack.start_controller()
        async with stack.client() as client:
            await client.call("POST", f"/mails/{mail['id']}/retry", body={})
        second = await relay.next()
        await until_sent(stack, 1)
    assert first.message["Message-ID"] == second.message["Message-ID"] == mail["message_id"]
    assert len(relay.texts) == 2
