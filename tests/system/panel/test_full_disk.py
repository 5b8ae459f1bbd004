"""The disk of the panel filled to the last block by one of its customers, say: an outage of changes, and of no more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB_OF_DISK = 500
BACK_WITHIN = 60
LOOK = 0.2
"""Seconds between two questions about what happens outside of this process."""


@pytest.fixture
async def panel() -> AsyncIterator[tuple[PanelPrograms, SmallDisk]]:
    async with open_panel_programs() as programs:
        with small_disk(programs.data, MIB_OF_DISK) as disk:
            await programs.start()
            await programs.customer()
            try:
                yield programs, disk
            finally:
                disk.empty()
                with trio.CancelScope(shield=True, relative_deadline=180):
                    await programs.stop()


async def redirect(root: httpx.AsyncClient, site: dict[str, Any], number: int) -> httpx.Response:
    wanted = {"path": f"/old-{number}", "target": "https://example.net/"}
    return await root.post(f"/sites/{site['id']}/redirects", json=wanted)


async def test_a_full_disk_refuses_changes_while_sites_are_served_and_heals_by_itself(
    panel: tuple[PanelPrograms, SmallDisk],
) -> None:
    programs, disk = panel
    site = await programs.site("full.example.org")
    junk = programs.data / "sites" / site["account"] / "public" / "junk"
    junk.write_bytes(b"x" * 1000)
    os.chown(junk, FIRST_UID + site["number"], FIRST_UID + site["number"])
    refused: httpx.Response | None = None
    numbers = iter(range(1, 10_000))
    acknowledged = []
    async with programs.client() as root:
        disk.fill()
        with trio.fail_after(BACK_WITHIN):
            while refused is None or refused.status_code != 503:
                number = next(numbers)
                refused = await redirect(root, site, number)
                if refused.status_code < 300:
                    acknowledged.append(f"/old-{number}")
                await trio.sleep(LOOK)
            while not any("sites are served on" in each["message"] for each in await listed(root, "/alerts")):
                await trio.sleep(LOOK)
        pages = [(await programs.visit("full.example.org")).status_code for _ in range(20)]
        read = await root.get(f"/sites/{site['id']}")
        freed = await root.post(f"/sites/{site['id']}/files/delete", json={"paths": ["public/junk"]})

        disk.empty()
        with trio.fail_after(BACK_WITHIN):
            while (taken := await redirect(root, site, number := next(numbers))).status_code >= 300:
                assert (taken.status_code, taken.json()["error"]["code"]) == (503, "unavailable")
                await trio.sleep(LOOK)
            while any(
                each["key"] == "disk:database" and "refused until" in each["message"]
                for each in await listed(root, "/alerts")
            ):
                await trio.sleep(LOOK)
        redirects = {each["path"] for each in (await root.get(f"/sites/{site['id']}/redirects")).json()}
        moved = await programs.visit("full.example.org", f"/old-{number}")

    assert refused.json()["error"]["code"] == "unavailable"
    assert "disk" in refused.json()["error"]["message"].lower()
    assert set(pages) == {200}
    assert read.status_code == 200
    assert freed.status_code == 200, freed.text
    assert not junk.exists()
    assert redirects >= set(acknowledged)
    assert moved.status_code == 301
    assert programs.core.running()


async def listed(root: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await root.get(path)).json()["items"]
    return found
