"""Sites with PHP, as visitors and as their own code see them: with real nginx, php-fpm and accounts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from tests.support.panel_programs import PanelPrograms, shared_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@dataclass
class Sites:
    panel: PanelPrograms
    a: dict[str, Any]
    b: dict[str, Any]

    def home(self, site: dict[str, Any]) -> Path:
        return self.panel.data / "sites" / str(site["account"])

    def put(self, site: dict[str, Any], name: str, text: str) -> Path:
        path = self.home(site) / "public" / name
        path.write_text(text)
        os.chown(path, FIRST_UID + site["number"], FIRST_UID + site["number"])
        return path

    async def visit_a(self, path: str = "/") -> httpx.Response:
        return await self.panel.visit(self.a["domain"], path)

    async def run(self, site: dict[str, Any], code: str) -> Any:
        """What a page of the site with this code answers, as JSON."""
        self.put(site, "run.php", f"<?php {code}")
        answer = await self.panel.visit(site["domain"], "/run.php")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def panel() -> Iterator[PanelPrograms]:
    with shared_panel_programs() as programs:
        trio.run(programs.customer)
        yield programs


@pytest.fixture
async def sites(panel: PanelPrograms) -> Sites:
    """Two that no other test has."""
    name = uuid4().hex[:8]
    return Sites(panel, *[await panel.site(f"{each}.{name}.example", type="php") for each in ("a", "b")])


@dataclass
class Visits:
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    said: set[str] = field(default_factory=set)


@asynccontextmanager
async def visited_every_50_milliseconds(sites: Sites, path: str) -> AsyncIterator[Visits]:
    visits = Visits()

    async def visit() -> None:
        try:
            answer = await sites.visit_a(path)
        except httpx.TransportError as error:
            visits.failed.append(repr(error))
        else:
            visits.answered += 1
            visits.said.add(answer.text)
            if answer.status_code != 200:
                visits.failed.append(f"{answer.status_code} {answer.text[:200]}")

    async def keep_visiting(nursery: trio.Nursery) -> None:
        while True:
            nursery.start_soon(visit)
            await trio.sleep(0.05)  # The visitor of the promise.

    async with trio.open_nursery() as visitors:
        async with trio.open_nursery() as clock:
            clock.start_soon(keep_visiting, visitors)
            yield visits
            clock.cancel_scope.cancel()


async def until_said(visits: Visits, word: str) -> None:
    with trio.fail_after(60):
        while word not in visits.said:
            await trio.sleep(0.05)  # Visitors come from outside of the panel.


async def test_pages_are_run_and_what_is_no_page_is_not(sites: Sites) -> None:
    sites.put(sites.a, "index.php", "<?php echo 'front ', $_SERVER['REQUEST_URI'];")
    sites.put(sites.a, "picture.jpg", "<?php echo 'executed';")
    sites.put(sites.a, "code.php", "<?php error_log('a note of the code'); echo 'path ', $_SERVER['PATH_INFO'] ?? '';")
    secret = sites.put(sites.b, "wp-config.php", "<?php // the password of b")
    (sites.home(sites.a) / "public" / "stolen.txt").symlink_to(secret)
    (sites.home(sites.a) / "public" / "stolen.php").symlink_to(secret)

    front = await sites.visit_a("/no/such/page?x=1")
    path = await sites.visit_a("/code.php/more")
    trick = await sites.visit_a("/picture.jpg/x.php")
    stolen = [await sites.visit_a(f"/stolen.{ending}") for ending in ("txt", "php")]
    async with sites.panel.client() as root:
        lines = (await root.get(f"/sites/{sites.a['id']}/logs", params={"source": "php"})).json()["lines"]

    assert front.text == "front /no/such/page?x=1"
    assert path.text == "path /more"
    assert "executed" not in trick.text
    assert trick.status_code == 404
    # A link to what another account owns is as if it were not there.
    assert stolen[0].text == "front /stolen.txt"
    assert stolen[1].status_code == 404
    assert any("a note of the code" in line for line in lines)


async def test_the_code_of_a_site_reaches_nothing_of_another(sites: Sites) -> None:
    secret = sites.put(sites.b, "secret.txt", "of b")
    [socket] = (sites.panel.data / "run" / "php").glob(f"{sites.b['account']}-*.sock")
    held = await sites.run(sites.b, "file_put_contents('/tmp/of-b', 'x'); echo json_encode(getmypid());")

    seen = await sites.run(
        sites.a,
        f"""
        $connected = @stream_socket_client('unix://{socket}', $number, $problem, 1);
        echo json_encode([
            'uid' => posix_getuid(),
            'file' => @file_get_contents('{secret}'),
            'homes' => scandir(dirname($_SERVER['HOME'])),
            'data' => scandir('{sites.panel.data}'),
            'connected' => $connected !== false,
            'temporary' => scandir('/tmp'),
            'owners' => array_values(array_unique(array_map('fileowner', glob('/proc/[0-9]*')))),
            'signalled' => posix_kill({held}, 0),
            'root' => @file_put_contents('/etc/of-a', 'x'),
            'shell' => trim(shell_exec('id -u; cat /proc/1/cmdline 2>&1')),
        ]);
        """,
    )

    uid = FIRST_UID + sites.a["number"]
    assert seen["uid"] == uid
    assert seen["file"] is False
    assert seen["homes"] == [".", "..", sites.a["account"]]
    assert set(seen["data"]) == {".", "..", "php", "run", "sites"}
    assert seen["connected"] is False
    assert "of-b" not in seen["temporary"]
    assert seen["owners"] == [uid]
    assert seen["signalled"] is False
    assert seen["root"] is False
    assert seen["shell"].splitlines() == [str(uid), "cat: /proc/1/cmdline: No such file or directory"]


async def test_visitors_notice_nothing_of_other_settings_nor_of_a_core_that_is_killed(sites: Sites) -> None:
    sites.put(sites.a, "limit.php", "<?php usleep(20000); echo ini_get('memory_limit');")
    path = f"/sites/{sites.a['id']}/php"

    async with visited_every_50_milliseconds(sites, "/limit.php") as visits:
        await until_said(visits, "256M")
        async with sites.panel.client() as root:
            changed = await root.patch(path, json={"memory_limit_mib": 96, "timezone": "Europe/Vienna"})
        await until_said(visits, "96M")
        await sites.panel.core.kill()
        before = visits.answered
        with trio.fail_after(60):
            while visits.answered < before + 20:
                await trio.sleep(0.05)  # Visitors come from outside of the panel.
        await sites.panel.start()
        async with sites.panel.client() as root:
            restarted = await root.post(f"{path}/restart", json={})

    zone = await sites.run(sites.a, "echo json_encode(date_default_timezone_get());")
    assert changed.status_code == restarted.status_code == 200, (changed.text, restarted.text)
    assert changed.json()["settings"]["memory_limit_mib"] == 96
    assert visits.failed == []
    assert visits.said == {"256M", "96M"}
    assert zone == "Europe/Vienna"


async def test_a_site_that_takes_all_it_can_get_is_held_by_its_limits(sites: Sites) -> None:
    sites.put(sites.b, "index.php", "<?php echo 'b is well';")
    sites.put(sites.a, "index.php", "<?php echo 'a is well';")
    sites.put(
        sites.a,
        "memory.php",
        "<?php ini_set('memory_limit', '-1'); $kept = []; while (true) $kept[] = random_bytes(1 << 20);",
    )
    bomb = "for ($i = 0; $i < 200; $i++) @exec('sleep 5 > /dev/null 2>&1 &', $out, $status); echo json_encode($i);"
    async with sites.panel.client() as root:
        limited = await root.patch(f"/sites/{sites.a['id']}", json={"memory_mib": 160, "processes": 12})
        assert limited.status_code == 200, limited.text

    hog = await sites.visit_a("/memory.php")
    while_full = await sites.panel.visit(sites.b["domain"])
    await sites.run(sites.a, bomb)
    count = sum(1 for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_of(entry, sites.a["number"]))
    while_bombed = await sites.panel.visit(sites.b["domain"])
    with trio.fail_after(60):
        while (again := await sites.visit_a()).text != "a is well":
            await trio.sleep(0.1)  # The kernel ends what was too much.

    assert hog.status_code in (500, 502)
    assert while_full.text == while_bombed.text == "b is well"
    assert count <= 12
    assert again.status_code == 200


def _is_of(process: Path, number: int) -> bool:
    try:
        return process.stat().st_uid == FIRST_UID + number
    except FileNotFoundError:
        return False
