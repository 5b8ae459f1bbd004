"""A panel as its own processes, and its sites as visitors see them."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from svc_actors.panel.certificates.served import Serving, shown_at
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.pebble import Pebble, open_pebble
from tests.support.stack import BIN

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture
async def pebble(tmp_path: Path) -> AsyncIterator[Pebble]:
    async with open_pebble(tmp_path / "pebble") as authority:
        yield authority


@pytest.fixture
async def panel(pebble: Pebble) -> AsyncIterator[PanelPrograms]:
    async with open_panel_programs(pebble) as programs:
        await programs.start()
        await programs.customer()
        yield programs


async def certified(panel: PanelPrograms, site: dict[str, Any]) -> dict[str, Any]:
    """The site's certificate, once it is served."""
    found: dict[str, Any] = {}
    async with panel.client() as root:
        with trio.fail_after(120):
            while not found.get("served"):
                found = (await root.get(f"/sites/{site['id']}/ssl")).json()
                await trio.sleep(0.1)  # An authority decides outside of this process.
    return found


async def test_a_site_answers_over_https_with_a_certificate_of_the_authority(
    panel: PanelPrograms, pebble: Pebble
) -> None:
    site = await panel.site("shop.example.com", aliases=["www.shop.example.com"])
    certificate = await certified(panel, site)

    root = await pebble.root()
    page = await panel.visit("shop.example.com", trusted=root)
    alias = await panel.visit("www.shop.example.com", trusted=root)

    assert page.status_code == alias.status_code == 200
    assert "shop.example.com" in page.text
    assert certificate["state"] == "active"
    assert sorted(certificate["names"]) == ["shop.example.com", "www.shop.example.com"]


async def test_a_name_that_is_added_comes_into_the_certificate(panel: PanelPrograms, pebble: Pebble) -> None:
    site = await panel.site("shop.example.com")
    before = await certified(panel, site)

    async with panel.client() as root:
        added = await root.post(f"/sites/{site['id']}/domains", json={"name": "shop.example.org"})
        assert added.status_code < 300, added.text
        with trio.fail_after(120):
            while (await root.get(f"/sites/{site['id']}/ssl")).json()["fingerprint"] == before["fingerprint"]:
                await trio.sleep(0.1)  # An authority decides outside of this process.
    await certified(panel, site)
    page = await panel.visit("shop.example.org", trusted=await pebble.root())

    assert page.status_code == 200


async def test_visitors_notice_nothing_of_a_core_that_is_killed(panel: PanelPrograms, pebble: Pebble) -> None:
    site = await panel.site("shop.example.com")
    await certified(panel, site)
    root = await pebble.root()
    failed: list[str] = []
    answered = 0

    async def visit(stop: trio.Event) -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                page = await panel.visit("shop.example.com", trusted=root)
                answered += 1
                if page.status_code != 200:
                    failed.append(str(page.status_code))
            except httpx.TransportError as error:
                failed.append(repr(error))

    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(visit, stop)
        for _ in range(3):
            await panel.core.kill()
            await panel.start()
        stop.set()
    async with panel.client() as client:
        after = (await client.get(f"/sites/{site['id']}")).json()

    assert failed == []
    assert answered > 20
    assert after["status"] == "active"


async def test_over_the_web_tier_a_customer_signs_in_and_sees_their_own_site(panel: PanelPrograms) -> None:
    await panel.site("shop.example.com")
    await panel.customer("bob@example.com")
    await panel.start_web()
    origin = f"https://localhost:{panel.port}"
    browser = {"Origin": origin, "X-Service-Request": "1"}

    async with httpx.AsyncClient(base_url=f"{origin}/api/v1", verify=False, headers=browser, timeout=60) as ada:
        anonymous = await ada.get("/sites")
        await ada.post("/auth/login", json={"email": "ada@example.com", "password": "Correct-Horse-42"})
        own = await ada.get("/sites")
    async with httpx.AsyncClient(base_url=f"{origin}/api/v1", verify=False, headers=browser, timeout=60) as bob:
        await bob.post("/auth/login", json={"email": "bob@example.com", "password": "Correct-Horse-42"})
        foreign = await bob.get("/sites")
    async with panel.client() as root:
        audit = (await root.get("/audit", params={"operation": "session.login"})).json()

    assert anonymous.status_code == 401
    assert [site["domain"] for site in own.json()["items"]] == ["shop.example.com"]
    assert foreign.json()["items"] == []
    assert {row["address"] for row in audit["items"]} <= {"127.0.0.1", "::1"}


async def test_a_body_whose_length_nobody_announced_is_carried_over_http_2(panel: PanelPrograms) -> None:
    await panel.start_web()
    origin = f"https://localhost:{panel.port}"
    browser = {"Origin": origin, "X-Service-Request": "1", "Content-Type": "application/json"}

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"email": "ada@example.com", '
        yield b'"password": "Correct-Horse-42"}'

    async with httpx.AsyncClient(http2=True, verify=False, headers=browser, timeout=60) as http:
        answer = await http.post(f"{origin}/api/v1/auth/login", content=pieces())

    assert answer.http_version == "HTTP/2"
    assert answer.status_code == 200, answer.text


async def test_svc_signs_in_over_the_web_tier_and_has_the_panels_commands(panel: PanelPrograms, tmp_path: Path) -> None:
    await panel.site("shop.example.com")
    await panel.start_web()
    certificate = x509.load_pem_x509_certificate((panel.data / "web" / "certificate.pem").read_bytes())
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    async def svc(*arguments: str) -> str:
        command, environment = [str(BIN / "svc"), *arguments], dict(os.environ) | home
        ended = await trio.run_process(command, env=environment, capture_stdout=True, capture_stderr=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode()

    address = f"https://localhost:{panel.port}"
    seen = certificate.fingerprint(hashes.SHA256()).hex()
    given = ("--email", "ada@example.com", "--password", "Correct-Horse-42", "--fingerprint", seen)
    await svc("login", address, *given)

    assert "shop.example.com" in await svc("site", "list")


async def test_while_the_core_is_away_the_web_tier_says_so(panel: PanelPrograms) -> None:
    await panel.start_web()
    await panel.core.kill()

    async with httpx.AsyncClient(verify=False, timeout=60) as http:
        answer = await http.get(f"https://localhost:{panel.port}/api/v1/sites")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert answer.headers["cache-control"] == "no-store"


async def test_the_panels_own_port_shows_a_certificate_of_the_authority(pebble: Pebble) -> None:
    async with open_panel_programs(pebble, ("--public-host", "panel.example.com")) as programs:
        await programs.start()
        await programs.start_web()
        own = x509.load_pem_x509_certificate((programs.data / "web" / "certificate.pem").read_bytes())
        at_first = own.fingerprint(hashes.SHA256()).hex()
        with trio.fail_after(120):
            while await shown_at(Serving("127.0.0.1", programs.port), "panel.example.com") in (None, at_first):
                await trio.sleep(0.1)  # An authority decides outside of this process.
        trusted = ssl.create_default_context(cadata=await pebble.root())

        async with httpx.AsyncClient(verify=trusted, timeout=60) as http:
            answer = await http.get(
                f"https://127.0.0.1:{programs.port}/api/v1/sites", extensions={"sni_hostname": "panel.example.com"}
            )

    assert answer.status_code == 401


async def test_the_core_has_the_search_for_garbage_of_the_service() -> None:
    async with open_panel_programs() as panel:
        await panel.start()

        log = (panel.folder / "core.log").read_text()

    assert "garbage.collected" in log, log
