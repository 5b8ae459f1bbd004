"""Signing in to the panel's pages, with and without a second factor."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import expect

from tests.support.authenticator import Authenticator
from tests.support.harness import PASSWORD
from tests.support.panel_pages import Browser, PanelPages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def test_a_wrong_password_is_refused_and_the_right_one_signs_in_and_out(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA, "not-the-Password-1")
        expect(browser.page.get_by_role("alert")).to_be_visible()
        browser.sign_in(ADA)
        browser.shows(ADA)
        browser.press("Sign out")
        expect(browser.page.get_by_role("heading", name="Sign in")).to_be_visible()

    await panel.browse(visit)


async def test_on_a_phone_the_section_that_is_open_is_in_sight(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.page.set_viewport_size({"width": 390, "height": 760})
        browser.sign_in(ADA)
        sections = browser.page.get_by_role("navigation", name="Sections").get_by_role("link")
        expect(sections.last).not_to_be_in_viewport()
        browser.page.goto(f"{browser.page.url.partition('#')[0]}{sections.last.get_attribute('href')}")
        expect(sections.last).to_be_in_viewport()

    await panel.browse(visit)


async def test_a_second_factor_is_set_up_and_asked_for_and_a_recovery_code_stands_in_for_it(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow(ADA)
        browser.press("Set up a second factor")
        browser.fill("Your password", PASSWORD)
        browser.press("Continue")
        secret = browser.page.locator("main .secret code")
        expect(secret).to_be_visible()
        phone = Authenticator(secret.inner_text(), time.time())
        browser.press("Enter code")
        browser.fill("Code", phone.code())
        browser.press("Confirm")
        codes = browser.page.locator("dialog .secret code")
        expect(codes).to_be_visible()
        recovery = codes.inner_text().split()
        browser.press("Done")
        browser.press("Sign out")

        browser.sign_in(ADA)
        browser.shows("Sign in with a code")
        browser.fill("Code", recovery[0])
        browser.press("Sign in")
        browser.follow(ADA)
        browser.shows(str(len(recovery) - 1))

    await panel.browse(visit)


HELD = """() => {
    const plain = window.fetch;
    const refused = new Promise((resolve) => addEventListener("signed-out", resolve));
    const released = new Promise((resolve) => { window.release = resolve; });
    let looks = 0;
    window.fetch = async (url, request) => {
        const answer = await plain(url, request);
        if (String(url).endsWith("/me")) await (++looks === 1 ? refused : released);
        return answer;
    };
}"""
"""After signing out: the page learns that nobody is signed in only once another of its calls was refused for the same
reason, and what it asks after that is answered when the test says so."""


async def test_what_is_typed_right_after_signing_out_is_not_taken_away(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow(ADA)
        browser.press("Set up a second factor")
        browser.fill("Your password", PASSWORD)
        browser.press("Continue")
        secret = browser.page.locator("main .secret code")
        expect(secret).to_be_visible()
        browser.press("Enter code")
        browser.fill("Code", Authenticator(secret.inner_text(), time.time()).code())
        browser.press("Confirm")
        browser.press("Done")
        browser.page.evaluate(HELD)
        browser.press("Sign out")
        browser.fill("Email", ADA)
        browser.fill("Password", PASSWORD)
        browser.press("Sign in")
        browser.shows("Sign in with a code")
        browser.page.evaluate("window.release()")

        browser.page.evaluate("fetch('/api/v1/me').then((answer) => answer.text())")
        browser.shows("Sign in with a code")

    await panel.browse(visit)
