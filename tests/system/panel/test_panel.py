"""A panel as its own processes, and its sites as visitors see them."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from svc_actors.panel.certificates.served import VisitorAddress, shown_at
from tests.support.panel_programs import PanelPrograms, open_panel_programs, shared_panel_programs
from tests.support.pebble import Pebble, open_pebble
from tests.support.shared import open_for_many
from tests.support.stack import BIN

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@dataclass(frozen=True)
class Customer:
    """Of one test; `domain` is of theirs alone."""

    email: str
    domain: str
    password: str = "Correct-Horse-42"

    @property
    def login(self) -> dict[str, str]:
        return {"email": self.email, "password": self.password}


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pebble]:
    with open_for_many(open_pebble(tmp_path_factory.mktemp("authority") / "pebble")) as authority:
        yield authority


@pytest.fixture(scope="module")
def programs(pebble: Pebble) -> Iterator[PanelPrograms]:
    with shared_panel_programs(pebble=pebble) as started:
        yield started


@pytest.fixture
async def panel(programs: PanelPrograms) -> PanelPrograms:
    """Both of its programs run, whatever the test before has killed."""
    if not programs.core.running():
        await programs.start()
    if not programs.web.running():
        await programs.start_web()
    return programs


@pytest.fixture
async def ada(panel: PanelPrograms) -> Customer:
    name = uuid4().hex[:8]
    customer = Customer(f"ada-{name}@example.com", f"shop.{name}.example")
    await panel.customer(customer.email, customer.password)
    return customer


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
    panel: PanelPrograms, pebble: Pebble, ada: Customer
) -> None:
    names = [ada.domain, f"www.{ada.domain}"]
    site = await panel.site(names[0], ada.email, aliases=names[1:])
    certificate = await certified(panel, site)

    root = await pebble.root()
    page, alias = [await panel.visit(name, trusted=root) for name in names]

    assert page.status_code == alias.status_code == 200
    assert ada.domain in page.text
    assert certificate["state"] == "active"
    assert sorted(certificate["names"]) == names


async def test_a_name_that_is_added_comes_into_the_certificate(
    panel: PanelPrograms, pebble: Pebble, ada: Customer
) -> None:
    another = ada.domain.replace("shop", "another")
    site = await panel.site(ada.domain, ada.email)
    before = await certified(panel, site)

    async with panel.client() as root:
        added = await root.post(f"/sites/{site['id']}/domains", json={"name": another})
        assert added.status_code < 300, added.text
        with trio.fail_after(120):
            while (await root.get(f"/sites/{site['id']}/ssl")).json()["fingerprint"] == before["fingerprint"]:
                await trio.sleep(0.1)  # An authority decides outside of this process.
    await certified(panel, site)
    page = await panel.visit(another, trusted=await pebble.root())

    assert page.status_code == 200


async def test_visitors_notice_nothing_of_a_core_that_is_killed(
    panel: PanelPrograms, pebble: Pebble, ada: Customer
) -> None:
    site = await panel.site(ada.domain, ada.email)
    await certified(panel, site)
    root = await pebble.root()
    failed: list[str] = []
    answered = 0

    async def visit(stop: trio.Event) -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                page = await panel.visit(ada.domain, trusted=root)
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


async def test_over_the_web_tier_a_customer_signs_in_and_sees_their_own_site(
    panel: PanelPrograms, ada: Customer
) -> None:
    await panel.site(ada.domain, ada.email)
    bob = replace(ada, email=f"bob-{ada.email}")
    await panel.customer(bob.email, bob.password)
    origin = f"https://localhost:{panel.port}"
    browser = {"Origin": origin, "X-Service-Request": "1"}

    async with httpx.AsyncClient(base_url=f"{origin}/api/v1", verify=False, headers=browser, timeout=60) as http:
        anonymous = await http.get("/sites")
        await http.post("/auth/login", json=ada.login)
        own = await http.get("/sites")
    async with httpx.AsyncClient(base_url=f"{origin}/api/v1", verify=False, headers=browser, timeout=60) as http:
        await http.post("/auth/login", json=bob.login)
        foreign = await http.get("/sites")
    async with panel.client() as root:
        audit = (await root.get("/audit", params={"operation": "session.login"})).json()

    assert anonymous.status_code == 401
    assert [site["domain"] for site in own.json()["items"]] == [ada.domain]
    assert foreign.json()["items"] == []
    assert {row["address"] for row in audit["items"]} <= {"127.0.0.1", "::1"}


async def test_a_body_whose_length_nobody_announced_is_carried_over_http_2(panel: PanelPrograms, ada: Customer) -> None:
    origin = f"https://localhost:{panel.port}"
    browser = {"Origin": origin, "X-Service-Request": "1", "Content-Type": "application/json"}

    async def pieces() -> AsyncIterator[bytes]:
        whole = json.dumps(ada.login).encode()
        yield whole[:20]
        yield whole[20:]

    async with httpx.AsyncClient(http2=True, verify=False, headers=browser, timeout=60) as http:
        answer = await http.post(f"{origin}/api/v1/auth/login", content=pieces())

    assert answer.http_version == "HTTP/2"
    assert answer.status_code == 200, answer.text


async def test_svc_signs_in_over_the_web_tier_and_has_the_panels_commands(
    panel: PanelPrograms, ada: Customer, tmp_path: Path
) -> None:
    await panel.site(ada.domain, ada.email)
    certificate = x509.load_pem_x509_certificate((panel.data / "web" / "certificate.pem").read_bytes())
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    async def svc(*arguments: str) -> str:
        command, environment = [str(BIN / "svc"), *arguments], dict(os.environ) | home
        ended = await trio.run_process(command, env=environment, capture_stdout=True, capture_stderr=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode()

    address = f"https://localhost:{panel.port}"
    seen = certificate.fingerprint(hashes.SHA256()).hex()
    given = ("--email", ada.email, "--password", ada.password, "--fingerprint", seen)
    await svc("login", address, *given)

    assert ada.domain in await svc("site", "list")


async def test_while_the_core_is_away_the_web_tier_says_so(panel: PanelPrograms) -> None:
    await panel.core.kill()

    async with httpx.AsyncClient(verify=False, timeout=60) as http:
        answer = await http.get(f"https://localhost:{panel.port}/api/v1/sites")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert answer.headers["cache-control"] == "no-store"


async def test_the_panels_own_port_shows_a_certificate_of_the_authority(tmp_path: Path) -> None:
    async with (
        open_pebble(tmp_path / "pebble") as pebble,
        open_panel_programs(pebble, ("--public-host", "panel.example.com")) as programs,
    ):
        await programs.start()
        await programs.start_web()
        own = x509.load_pem_x509_certificate((programs.data / "web" / "certificate.pem").read_bytes())
        at_first = own.fingerprint(hashes.SHA256()).hex()
        with trio.fail_after(120):
            while await shown_at(VisitorAddress("127.0.0.1", programs.port), "panel.example.com") in (None, at_first):
                await trio.sleep(0.1)  # An authority decides outside of this process.
        trusted = ssl.create_default_context(cadata=await pebble.root())

        async with httpx.AsyncClient(verify=trusted, timeout=60) as http:
            answer = await http.get(
                f"https://127.0.0.1:{programs.port}/api/v1/sites", extensions={"sni_hostname": "panel.example.com"}
            )

    assert answer.status_code == 401


async def test_the_core_has_the_search_for_garbage_of_the_service(panel: PanelPrograms) -> None:
    log = (panel.folder / "core.log").read_text()

    assert "garbage.collected" in log, log
