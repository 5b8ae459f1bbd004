"""Single sign-on: a billing system lets a customer in by a link, once, and it is written down who did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from svc_actors.store import Database
from tests.panel.sites.world import World, world_of


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made


async def token(world: World) -> str:
    answer = await world.root.post(f"/accounts/{world.ada_id}/sign-in-link", {})
    assert answer.status_code == 201, answer.text
    fragment = urlsplit(str(answer.json()["url"])).fragment
    return parse_qs(fragment.partition("?")[2])["token"][0]


async def test_a_link_signs_in_as_the_customer_and_says_by_whom(world: World) -> None:
    link = await token(world)
    browser = world.panel.browser()

    answer = await browser.post("/auth/link", {"token": link})

    assert answer.json()["user"]["email"] == "ada@example.com"
    assert (await browser.get("/me")).json()["email"] == "ada@example.com"
    rows = {row["operation"]: row for row in await world.panel.audit()}
    assert rows["account.sign_in_link"]["actor"] == "root@example.com"
    assert rows["session.link"]["actor"] == "ada@example.com"
    assert "root@example.com" in str(rows["session.link"]["details"])
    assert link not in str(await world.panel.audit())
    stored = await world.panel.database.fetchval("SELECT string_agg(row::text, ' ') FROM sign_in_links AS row")
    assert stored is None


async def test_of_many_that_use_a_link_at_once_one_gets_in(world: World) -> None:
    link = await token(world)
    answers: list[Any] = []

    async def use() -> None:
        answers.append(await world.panel.browser().post("/auth/link", {"token": link}))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(use)

    assert sorted(answer.status_code for answer in answers) == [200] + [403] * 7


async def test_a_link_that_is_late_or_of_somebody_suspended_opens_nothing(world: World) -> None:
    late = await token(world)
    await world.panel.database.execute("UPDATE sign_in_links SET expires_at = now()")
    too_late = await world.panel.browser().post("/auth/link", {"token": late})
    early = await token(world)
    await world.root.post(f"/accounts/{world.ada_id}/suspend", {"reason": "not paid"})

    suspended = await world.panel.browser().post("/auth/link", {"token": early})
    none = await world.root.post(f"/accounts/{world.ada_id}/sign-in-link", {})

    assert (too_late.status_code, suspended.status_code, none.status_code) == (403, 403, 409)


async def test_nobody_gets_into_an_administrators_account_by_a_link(world: World) -> None:
    other = await world.panel.person("boss@example.com", "administrator")

    answers = [
        await world.root.post(f"/accounts/{other}/sign-in-link", {}),
        await world.ada.post(f"/accounts/{world.ada_id}/sign-in-link", {}),
    ]

    assert [answer.status_code for answer in answers] == [409, 403]
