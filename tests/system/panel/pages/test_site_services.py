"""What runs and is kept for one site: databases, PHP, scheduled tasks, backups."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from svc_actors.store import Database
from tests.panel.staging.shops import furnish
from tests.support.git_hosts import KEY, GitHosts
from tests.support.harness import Client
from tests.support.panel import recorded_host
from tests.support.panel_pages import Browser, PagesTier, PanelPages, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def made(client: Client, type_: str = "static") -> dict[str, Any]:
    answer = await client.post("/sites", {"domain": "shop.example.org", "type": type_})
    assert answer.status_code == 201, answer.text
    site: dict[str, Any] = answer.json()
    return site


def at(browser: Browser, tab: str) -> None:
    browser.sign_in(ADA)
    browser.follow("shop.example.org")
    browser.follow(tab)


async def test_a_database_is_made_with_a_user_whose_password_is_shown_once(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    await made(ada)

    def visit(browser: Browser) -> None:
        at(browser, "Databases")
        browser.press("Create database")
        browser.fill("Name", "shop")
        browser.fill("With a user called", "shop")
        browser.press("Create")
        password = browser.page.locator("dialog .secret code")
        expect(password).to_be_visible()
        secret = password.inner_text()
        browser.press("Done")
        expect(browser.row("mariadb").first).to_contain_text("_shop")
        expect(browser.page.locator("body")).not_to_contain_text(secret)

    await panel.browse(visit)

    [database] = (await ada.get("/databases")).json()["items"]
    assert database["name"].endswith("_shop")


async def test_a_scheduled_task_is_added_changed_and_deleted(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        at(browser, "Schedules")
        browser.press("Create task")
        browser.fill("Name", "news")
        browser.choose("Type", "url")
        browser.fill("Path", "/cron.html")
        browser.fill("When", "*/15 * * * *")
        browser.press("Create")
        task = browser.row("news")
        expect(task).to_contain_text("*/15 * * * *")
        task.get_by_role("button", name="Change").click()
        expect(browser.field("When")).to_have_value("*/15 * * * *")
        browser.fill("When", "0 4 * * *")
        browser.press("Save")
        expect(task).to_contain_text("0 4 * * *")
        task.get_by_role("button", name="Delete").click()
        browser.press("Delete")
        browser.shows("No scheduled tasks.")

    await panel.browse(visit)

    assert (await ada.get(f"/sites/{site['id']}/schedules")).json() in ([], {"items": []})


async def test_when_a_site_is_backed_up_is_changed(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        at(browser, "Backups")
        browser.press("Change schedule")
        browser.page.get_by_label("Back up automatically").check()
        browser.choose("Frequency", "weekly")
        browser.choose("Weekday", "6")
        browser.fill("Hour, in UTC", "3")
        browser.press("Save")
        browser.shows("every Sunday at 03:00 UTC")

    await panel.browse(visit)

    schedule = (await ada.get(f"/sites/{site['id']}/backups/schedule")).json()
    assert (schedule["frequency"], schedule["weekday"], schedule["hour"]) == ("weekly", 6, 3)


async def test_settings_of_php_are_changed(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada, "php")

    def visit(browser: Browser) -> None:
        at(browser, "PHP")
        browser.press("Change version and settings")
        browser.fill("Memory of a request, in MiB", "512")
        browser.press("Save")
        browser.shows("512 MiB")

    await panel.browse(visit)

    assert (await ada.get(f"/sites/{site['id']}/php")).json()["settings"]["memory_limit_mib"] == 512


async def test_a_wordpress_is_made_and_opened_by_a_link_that_logs_in(panel: PanelPages) -> None:
    await panel.core.customer(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.press("Create site")
        browser.fill("Domain", "blog.example.org")
        browser.choose("Type", "wordpress")
        browser.fill("Title", "Ada's Blog")
        browser.press("Create")
        expect(browser.page.locator(".head").get_by_text("active")).to_be_visible()
        browser.follow("WordPress")
        row = browser.row("Akismet")
        row.get_by_role("button", name="Activate").click()
        expect(row.get_by_role("button", name="Deactivate")).to_be_visible()
        browser.press("Log in")
        browser.press("Create link")
        link = browser.page.get_by_role("link", name="Open the dashboard")
        expect(link).to_have_attribute("href", re.compile("^https?://blog.example.org"))
        browser.press("Done")
        furnish(panel.core, 1001)
        browser.follow("Staging")
        browser.press("Create copy")
        browser.press("Create")
        browser.shows("It is shown only once")
        browser.press("Done")
        browser.shows("What a push replaces")
        expect(browser.row("wp_options")).to_contain_text("replaced")
        expect(browser.row("wp_users")).to_contain_text("visitors write it")
        browser.press("Push to blog.example.org")
        browser.shows("The site is backed up")

    await panel.browse(visit)


async def test_an_application_is_made_stopped_and_started(panel: PanelPages) -> None:
    await panel.core.customer(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.press("Create site")
        browser.fill("Domain", "shop.example.org")
        browser.choose("Type", "app")
        browser.choose("Runtime", "python")
        browser.fill("Entry point", "shop:app")
        browser.press("Create")
        browser.follow("Application")
        browser.press("Start")
        browser.shows("running")
        browser.press("Stop")
        browser.shows("stopped")
        browser.shows("Nothing was deployed yet")
        browser.press("Deploy")
        browser.fill("Archive", "private/code.zip")
        browser.page.get_by_role("dialog").get_by_role("button", name="Deploy").click()
        browser.shows("folder cannot be opened")
        browser.page.go_back()
        expect(browser.row("private/code.zip").first).to_contain_text("failed")
        for name in ("API_KEY", "MODE"):
            browser.press("Set variable")
            browser.fill("Variable", name)
            browser.fill("Value", "a value that is not shown again")
            browser.press("Set")
            expect(browser.row(name).first).to_be_visible()
        browser.row("MODE").get_by_role("button", name="Remove").click()
        browser.press("Remove")
        expect(browser.row("MODE")).to_have_count(0)
        expect(browser.row("API_KEY").first).to_be_visible()
        expect(browser.page.locator("body")).not_to_contain_text("a value that is not shown again")

    await panel.browse(visit)


async def test_a_deploy_key_is_made_for_a_host_whose_own_key_was_confirmed(
    tier: PagesTier, panel_database: Database
) -> None:
    host = replace(recorded_host(), foreign_hosts=GitHosts())
    async with panel_with_pages(tier, panel_database, host=host) as panel:
        ada = await panel.core.customer(ADA)
        values = {"domain": "shop.example.org", "type": "app", "runtime": "python", "entry": "shop:app"}
        assert (await ada.post("/sites", values)).status_code == 201

        def visit(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.follow("shop.example.org")
            browser.follow("Application")
            browser.shows("repositories that anybody may read need no key")
            browser.press("Create deploy key")
            browser.fill("Host", "93.184.216.34")
            browser.press("Show host keys")
            browser.shows(KEY.fingerprint)
            browser.press("Confirm")
            browser.press("Create")
            browser.shows("Give this public key to 93.184.216.34")
            browser.press("Done")
            expect(browser.row("93.184.216.34")).to_contain_text("ssh-ed25519 ")
            browser.row("93.184.216.34").get_by_role("button", name="Delete").click()
            browser.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            browser.shows("repositories that anybody may read need no key")

        await panel.browse(visit)


async def test_an_access_account_is_made_with_a_password_that_is_shown_once_and_deleted(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        at(browser, "Access")
        browser.shows("No access accounts yet")
        browser.press("Create account")
        browser.fill("Name", "bob")
        browser.fill("Folder", "public")
        browser.press("Create")
        password = browser.page.locator("dialog .secret code")
        expect(password).to_be_visible()
        secret = password.inner_text()
        browser.press("Done")
        expect(browser.row("-bob").first).to_contain_text("sftp -P")
        expect(browser.page.locator("body")).not_to_contain_text(secret)
        browser.row("-bob").get_by_role("button", name="Reset password").click()
        browser.press("Reset")
        expect(password).not_to_have_text(secret)
        browser.press("Done")
        browser.row("-bob").get_by_role("button", name="Delete").click()
        browser.press("Delete")
        browser.shows("No access accounts yet")

    await panel.browse(visit)

    assert (await ada.get(f"/sites/{site['id']}/sftp")).json() == []


async def test_an_administrator_plans_restore_drills(panel: PanelPages) -> None:
    await made(await panel.core.customer(ADA))
    await panel.core.database.execute(
        """INSERT INTO backup_drills (backup_id, domain, cause, job_id, status, entries, databases, ended_at)
           VALUES (gen_random_uuid(), 'pending.example.org', 'manual', 1001, 'pending', 0, 0, NULL),
                  (gen_random_uuid(), 'tried.example.org', 'manual', 1002, 'succeeded', 1204, 2, now())"""
    )
    await panel.core.person("root@example.com", "administrator")

    def visit(browser: Browser) -> None:
        browser.sign_in("root@example.com")
        browser.follow("Restore drills")
        browser.shows("Runs weekly")
        browser.press("Change schedule")
        browser.choose("Frequency", "off")
        browser.press("Save")
        browser.shows("Does not run automatically")
        expect(browser.row("pending.example.org")).to_contain_text("nothing yet")
        expect(browser.row("tried.example.org")).to_contain_text("1,204 files, folders and links; 2 databases")
        browser.press("Start drill")
        expect(browser.field("Site").locator("option")).to_have_text(["any site", "shop.example.org"])

    await panel.browse(visit)


async def test_who_hands_a_site_over_is_told_what_was_ended(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    await panel.core.customer("eve@example.com")
    await panel.core.person("root@example.com", "administrator")
    site = await made(ada)
    assert (await ada.post(f"/sites/{site['id']}/sftp", {"name": "bob"})).status_code == 201

    def visit(browser: Browser) -> None:
        browser.sign_in("root@example.com")
        browser.follow("shop.example.org")
        browser.press("Change site")
        browser.fill("Owner", "eve@example.com")
        browser.press("Save")
        told = browser.page.locator("dialog[open]")
        expect(told).to_contain_text("belongs to eve@example.com now")
        expect(told).to_contain_text(f"{site['account']}-bob")
        browser.press("Done")
        browser.follow("Jobs")
        browser.shows("Revoke the previous owner's access to shop.example.org")

    await panel.browse(visit)
