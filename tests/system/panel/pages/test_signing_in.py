"""Signing in to the panel's pages, with and without a second factor."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import expect

from tests.support.authenticator import Authenticator
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


async def test_a_second_factor_is_set_up_and_asked_for_and_a_recovery_code_stands_in_for_it(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow(ADA)
        browser.press("Set up a second factor")
        browser.fill("Your password", "Correct-Horse-42")
        browser.press("Go on")
        secret = browser.page.locator("main .secret code")
        expect(secret).to_be_visible()
        phone = Authenticator(secret.inner_text(), time.time())
        browser.press("Type its code")
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
