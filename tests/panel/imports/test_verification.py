"""A site is compared with the host that it comes from: what visitors get there and here, and what is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio

from svc_actors.panel.imports import verifying
from svc_actors.panel.imports.comparing import Answer, difference, difference_of_pages
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_webhost.confined.pages import paths_of_sitemap, similarity
from svc_webhost.confined_client import SiteFolder
from tests.panel.imports.world import FolderAccounts, world_of
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import MAIN
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.site_files import give
from tests.support.stack import free_port
from tests.support.zone_files import CPANEL

HTML = {"content-type": "text/html; charset=utf-8"}
ALLOWED = WebhookSettings(networks=(ip_network("127.0.0.0/8"),))
NAMES = frozenset({"shop.example", "www.shop.example"})


def page(text: str, status: int = 200, **headers: str) -> Answer:
    return answer(text.encode(), status, HTML | headers)


def answer(body: bytes, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    return Answer(status, headers, body, len(body), hashlib.sha256(body).digest())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (page("", 200), page("", 500), "500 instead of 200"),
        (page("", 301, location="https://shop.example/x"), page("", 301, location="http://www.shop.example/x"), None),
        (
            page("", 301, location="https://shop.example/x"),
            page("", 301, location="/y"),
            "it leads to /y instead of /x",
        ),
        (page("gone", 404), page("other", 404), None),
        (answer(b"\0"), answer(b"\1"), "other content: 1 bytes instead of 1"),
    ],
)
def test_what_visitors_get_is_compared(old: Answer, new: Answer, said: str | None) -> None:
    assert difference(old, new, NAMES) == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<p>one two three</p>", "<div>one two three</div>", None),
        ("a b c d e f g h i j <script>1</script>", "a b c d e f g h i j <SCRIPT>2</Script>", None),
        ("a b c<style>x</style>d", "a b c<!-- 1 > 2 -->d", None),
        ("one two three four", "one", "25% of its words are the same"),
        ("one", "one two three four", "25% of its words are the same"),
        ("one one one one", "one one", "50% of its words are the same"),
        ("a <script> b", "a b", None),
        ("a <b", "a", "50% of its words are the same"),
        ("", "", None),
    ],
)
def test_pages_are_compared_by_the_words_that_visitors_read(old: str, new: str, said: str | None) -> None:
    assert difference_of_pages(similarity(old.encode(), new.encode())) == said


def test_a_sitemap_gives_the_paths_of_the_site_alone() -> None:
    sitemap = b"<urlset><loc>https://www.shop.example/a</loc><loc>https://elsewhere.example/b</loc></urlset>"

    assert list(paths_of_sitemap(sitemap, NAMES)) == ["/a"]


@dataclass
class Host:
    """A web server that answers what a test says, and remembers what it was asked."""

    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0
    answers: int | None = None
    """After so many it closes each connection; None for never."""
    served_by: str | None = None

    async def serve(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(30):
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    more = await stream.receive_some(4096)
                    if not more:
                        return
                    head += more
                lines = head.decode().split("\r\n")
                path = lines[0].split(" ")[1]
                host = next(line[6:] for line in lines if line.lower().startswith("host: "))
                self.asked.append((host, path))
                if self.answers is not None and len(self.asked) > self.answers:
                    return
                status, body = self.pages.get(path, (404, b"<p>not found</p>"))
                kind = "text/html" if path.endswith("/") else "text/css"
                by = f"X-Powered-By: {self.served_by}\r\n" if self.served_by else ""
                described = f"{by}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
                await stream.send_all(f"HTTP/1.1 {status} x\r\n{described}\r\n\r\n".encode() + body)


@asynccontextmanager
async def hosts() -> AsyncIterator[tuple[Host, Host]]:
    """The old one, and what is served here."""
    made = Host(), Host()
    async with trio.open_nursery() as nursery:
        for host in made:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            host.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, host.serve, listeners)
        yield made
        nursery.cancel_scope.cancel()


@dataclass
class World:
    panel: PanelHarness
    ada: Client
    bob: Client
    site: dict[str, Any]
    old: Host
    new: Host

    async def verified(self, **more: Any) -> dict[str, Any]:
        """The job, when it has ended."""
        wanted = {"address": "127.0.0.1", "https": False, "port": self.old.port} | more
        answer = await self.ada.post(f"/sites/{self.site['id']}/migration/verify", wanted)
        assert answer.status_code == 200, answer.text
        await self.panel.job_ended(answer.json()["id"])
        job: dict[str, Any] = (await self.ada.get(f"/jobs/{answer.json()['id']}")).json()
        return job


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    host = replace(recorded_host(), accounts=FolderAccounts(tmp_path / "sites"))
    async with (
        hosts() as (old, new),
        open_panel(
            panel_database, tmp_path, host, webhooks=ALLOWED, sites_http_port=new.port, loops=["jobs", "web server"]
        ) as panel,
    ):
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        made = (await ada.post("/sites", {"domain": "shop.example", "type": "php"})).json()
        uid = 1_900_000_000 + made["number"]
        give(SiteFolder(tmp_path / "sites" / f"s{made['number']}", uid, uid), "public/style.css")
        yield World(panel, ada, bob, made, old, new)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of sites are other accounts'")


@needs_root
async def test_the_report_names_what_visitors_get_otherwise_and_blocks(world: World) -> None:
    world.old.pages = {"/": (200, b"<p>welcome to the shop</p>"), "/style.css": (200, b"a")}
    world.new.pages = {"/": (200, b"<h1>welcome to the shop</h1>"), "/style.css": (200, b"b")}

    job = await world.verified()
    report = (await world.ada.get(f"/sites/{world.site['id']}/migration/verify")).json()

    assert job["status"] == "succeeded", job
    assert report["verdict"] == "blocked"
    assert report["differences"] == [{"path": "/style.css", "difference": "other content: 1 bytes instead of 1"}]
    assert {check["name"] for check in report["checks"] if not check["ok"]} == {"pages", "certificate"}
    assert {host for host, _ in world.old.asked} == {"shop.example"}
    assert {path for _, path in world.new.asked} >= {"/", "/style.css"}


@needs_root
async def test_what_the_old_host_did_not_answer_is_not_taken_for_the_same(world: World) -> None:
    same = {"/": (200, b"<p>welcome to the shop</p>"), "/style.css": (200, b"a")}
    world.old.pages, world.new.pages = same, same
    world.old.answers = 3  # `/` and the sitemap before, and one of the three addresses.

    await world.verified()
    report = (await world.ada.get(f"/sites/{world.site['id']}/migration/verify")).json()

    [compared] = [check for check in report["checks"] if check["name"] == "compared"]
    assert report["verdict"] == "blocked"
    assert not compared["ok"]
    assert compared["reason"].startswith("the old host did not answer 2 of 3 ")


@needs_root
async def test_a_large_file_is_compared_to_its_end(world: World) -> None:
    world.old.pages = {"/": (200, b"<p>shop</p>"), "/style.css": (200, bytes(5 << 20) + b"a")}
    world.new.pages = {"/": (200, b"<p>shop</p>"), "/style.css": (200, bytes(5 << 20) + b"b")}

    await world.verified()
    report = (await world.ada.get(f"/sites/{world.site['id']}/migration/verify")).json()

    assert [each["path"] for each in report["differences"]] == ["/style.css"]


@needs_root
async def test_hosts_that_are_slow_have_a_report_of_what_was_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_COMPARE_SECONDS", 0.0)
    world.old.pages = {"/": (200, b"<p>shop</p>")}

    job = await world.verified()
    report = (await world.ada.get(f"/sites/{world.site['id']}/migration/verify")).json()

    assert job["status"] == "succeeded"
    assert report["verdict"] == "blocked"
    assert {check["name"] for check in report["checks"] if not check["ok"]} >= {"compared"}


@needs_root
async def test_an_old_host_that_does_not_answer_is_no_report(world: World) -> None:
    job = await world.verified(port=free_port())
    report = await world.ada.get(f"/sites/{world.site['id']}/migration/verify")

    assert job["status"] == "failed"
    assert "does not answer" in job["error"]["message"]
    assert report.status_code == 404


@needs_root
async def test_an_address_inside_of_the_providers_network_is_not_asked(world: World) -> None:
    refused = [await world.verified(address=address) for address in ("10.0.0.1", "169.254.169.254", "::1")]
    foreign = await world.bob.get(f"/sites/{world.site['id']}/migration/verify")

    assert {job["status"] for job in refused} == {"failed"}
    assert all("cannot be queried" in job["error"]["message"] for job in refused)
    assert foreign.status_code == 404


@needs_root
async def test_an_imported_zone_is_compared_and_each_mail_server_asked_for_its_address(
    panel_database: Database, tmp_path: Path
) -> None:
    known = {"mx.elsewhere.example": ["192.0.2.25"], "here.elsewhere.example": ["203.0.113.80"]}

    async def resolve(name: str, port: int) -> list[str]:
        if name not in known:
            raise OSError(f"{name} is unknown")
        return known[name]

    host = replace(recorded_host(), accounts=FolderAccounts(tmp_path / "sites"), resolve=resolve)
    more = "".join(f"@ MX 20 {name}.elsewhere.example.\n" for name in ("mx", "here", "gone"))
    async with (
        hosts() as (old, new),
        world_of(panel_database, tmp_path, host, new=True, webhooks=ALLOWED, sites_http_port=new.port) as imports,
    ):
        imported = await imports.uploaded(foreign.cpanel(foreign.model(), zone=CPANEL.text + more))
        await imports.applied(imported)
        world = World(imports.panel, imports.ada, imports.bob, await imports.site(MAIN), old, new)
        old.pages = {"/": (200, b"<p>shop</p>")}

        async def checks() -> dict[str, tuple[bool, str | None]]:
            await world.verified()
            report = (await world.ada.get(f"/sites/{world.site['id']}/migration/verify")).json()
            return {check["name"]: (check["ok"], check["reason"]) for check in report["checks"]}

        imported_checks = await checks()
        records = (await world.ada.get(f"/sites/{world.site['id']}/dns")).json()["records"]
        for record in records:
            if record["name"] in (MAIN, f"mail.{MAIN}") and record["type"] in ("A", "AAAA"):
                await world.ada.delete(f"/sites/{world.site['id']}/dns/records/{record['id']}")
        changed_checks = await checks()

    assert imported_checks["dns"] == (True, None)
    assert imported_checks["mail"] == (
        False,
        "gone.elsewhere.example: it has no address; here.elsewhere.example: it is this server, which keeps no mail",
    )
    assert imported_checks["dns_records"] == (True, None)
    assert changed_checks["dns"] == (False, f"{MAIN} has no address")
    assert changed_checks["dns_records"] == (
        True,
        f"differ from the import: mail.{MAIN} A, mail.{MAIN} AAAA, {MAIN} A",
    )
    assert changed_checks["mail"][1] is not None
    assert f"mail.{MAIN}: it has no address" in changed_checks["mail"][1]
