"""Each repair against faults that were injected: real nginx, php-fpm, MariaDB and accounts, and a neighbour that keeps
what it has."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from svc_webhost.databases import EngineKind
from tests.support.certificates import self_signed
from tests.support.databases import ask
from tests.support.panel_programs import PanelPrograms, shared_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture(scope="module")
def panel() -> Iterator[PanelPrograms]:
    with shared_panel_programs() as programs:
        trio.run(programs.customer)
        yield programs


@pytest.fixture
async def site(panel: PanelPrograms) -> dict[str, Any]:
    """One of PHP that no other test has, and answers."""
    made = await panel.site(f"{uuid4().hex[:8]}.example", type="php")
    page = public(panel, made) / "index.php"
    page.write_text("<?php echo 'page';")
    os.chown(page, uid(made), uid(made))
    return made


def public(panel: PanelPrograms, site: dict[str, Any]) -> Path:
    return panel.data / "sites" / str(site["account"]) / "public"


def uid(site: dict[str, Any]) -> int:
    return FIRST_UID + int(site["number"])


async def faults(root: httpx.AsyncClient, site: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    answer = await root.get(f"/sites/{site['id']}/diagnose")
    assert answer.status_code == 200, answer.text
    return {check["name"]: check["findings"] for check in answer.json()["checks"] if check["state"] != "healthy"}


async def repaired(root: httpx.AsyncClient, site: dict[str, Any], repair: str) -> dict[str, Any]:
    answer = await root.post(f"/sites/{site['id']}/repair", json={"repair": repair})
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    with trio.fail_after(120):
        while job["status"] in ("queued", "running"):
            await trio.sleep(0.1)  # It is done outside of this process.
            job = (await root.get(f"/jobs/{job['id']}")).json()
    return job


async def test_nothing_is_wrong_with_a_site_that_was_just_made(panel: PanelPrograms, site: dict[str, Any]) -> None:
    async with panel.client() as root:
        assert await faults(root, site) == {}


async def test_files_that_were_given_to_root_are_the_sites_again(panel: PanelPrograms, site: dict[str, Any]) -> None:
    other = await panel.site(f"{uuid4().hex[:8]}.example", type="php")
    kept = public(panel, other) / "kept"
    kept.write_text("x")
    page = public(panel, site) / "index.php"
    os.chown(public(panel, site), 0, 0)
    os.chown(page, 0, 0)
    page.chmod(0)

    async with panel.client() as root:
        before = await faults(root, site)
        job = await repaired(root, site, "permissions")
        after = await faults(root, site)

    assert list(before) == ["permissions"]
    assert job["status"] == "succeeded", job
    assert after == {}
    assert page.stat().st_uid == uid(site)
    assert (await panel.visit(site["domain"])).text == "page"
    assert kept.stat().st_uid == 0, "another site was touched"


@pytest.mark.parametrize("how", ["truncated", "removed"])
async def test_a_configuration_of_nginx_comes_back(panel: PanelPrograms, site: dict[str, Any], how: str) -> None:
    file = panel.data / "nginx" / "current" / "sites" / f"s{site['number']}.conf"
    others = {each.name: each.read_text() for each in file.parent.iterdir() if each != file}
    # Not through the hard link: generations before have the same file.
    text = file.read_text()
    file.unlink()
    if how == "truncated":
        file.write_text("")

    async with panel.client() as root:
        before = await faults(root, site)
        job = await repaired(root, site, "configuration")
        after = await faults(root, site)

    now = panel.data / "nginx" / "current" / "sites"
    assert list(before) == ["configuration"]
    assert job["status"] == "succeeded", job
    assert after == {}
    assert (now / file.name).read_text() == text
    assert {each.name: each.read_text() for each in now.iterdir() if each.name != file.name} == others
    assert (await panel.visit(site["domain"])).text == "page"


async def test_php_whose_pool_was_edited_is_started_anew(panel: PanelPrograms, site: dict[str, Any]) -> None:
    [pool] = (panel.data / "php" / str(site["account"])).glob("*.conf")
    pool.write_text(pool.read_text() + "php_admin_value[auto_prepend_file] = /etc/passwd\n")

    async with panel.client() as root:
        before = await faults(root, site)
        job = await repaired(root, site, "configuration")
        after = await faults(root, site)

    # The round of the panel's own may have put the file back meanwhile.
    assert before.keys() <= {"configuration"}
    assert job["status"] == "succeeded", job
    assert after == {}
    assert (await panel.visit(site["domain"])).text == "page"


async def test_php_that_hangs_or_lost_its_socket_answers_again(panel: PanelPrograms, site: dict[str, Any]) -> None:
    assert (await panel.visit(site["domain"])).text == "page"
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            if Path(f"/proc/{pid}").stat().st_uid == uid(site):
                os.kill(pid, signal.SIGSTOP)
        except (FileNotFoundError, ProcessLookupError):
            continue

    async with panel.client() as root:
        hung = await faults(root, site)
        first = await repaired(root, site, "runtime")
        answered = (await panel.visit(site["domain"])).text
        for socket in (panel.data / "run" / "php").glob(f"{site['account']}-*.sock"):
            socket.unlink()
        lost = await faults(root, site)
        second = await repaired(root, site, "runtime")
        after = await faults(root, site)

    assert list(hung) == ["runtime"]
    assert list(lost) == ["runtime"]
    assert (first["status"], second["status"]) == ("succeeded", "succeeded"), (first, second)
    assert answered == "page"
    assert after == {}
    assert (await panel.visit(site["domain"])).text == "page"


async def test_a_damaged_certificate_is_put_back_and_shown(
    panel: PanelPrograms, site: dict[str, Any], tmp_path: Path
) -> None:
    own = self_signed(tmp_path, [site["domain"]])
    chain = own.certificate.read_text()
    async with panel.client() as root:
        uploaded = await root.put(f"/sites/{site['id']}/ssl", json={"certificate": chain, "key": own.key.read_text()})
        healthy = await faults(root, site)
        [key] = (panel.data / "certificates" / str(site["account"])).glob("*/key.pem")
        key.write_text("damaged")
        before = await faults(root, site)
        job = await repaired(root, site, "certificate")
        after = await faults(root, site)

    assert uploaded.status_code < 300, uploaded.text
    assert healthy == {}
    assert list(before) == ["certificate"]
    assert job["status"] == "succeeded", job
    assert after == {}
    assert key.read_bytes() == own.key.read_bytes()
    assert (await panel.visit(site["domain"], trusted=chain)).text == "page"


async def test_a_zone_that_lost_a_record_is_whole_again(panel: PanelPrograms, site: dict[str, Any]) -> None:
    domain = str(site["domain"])
    socket = panel.data / "knot" / "run" / "knot.sock"
    async with panel.client() as root:
        pointed = await root.post(f"/sites/{site['id']}/dns/point", json={})
        healthy = await faults(root, site)
        for command in (("zone-begin", domain), ("zone-unset", domain, "@", "A"), ("zone-commit", domain)):
            await trio.run_process(["knotc", "-s", str(socket), *command], capture_stdout=True)
        before = await faults(root, site)
        job = await repaired(root, site, "dns")
        after = await faults(root, site)

    assert pointed.status_code == 200, pointed.text
    assert healthy == {}
    # What watches the zones may have been there first.
    assert before.keys() <= {"dns"}
    assert job["status"] == "succeeded", job
    assert after == {}


async def test_grants_and_accounts_of_a_database_come_back(panel: PanelPrograms, site: dict[str, Any]) -> None:
    async with panel.client() as root:
        made = (
            await root.post("/databases", json={"site_id": site["id"], "name": "shop", "user": "ada"}, timeout=60)
        ).json()
        database, login = made["database"], made["login"]
        kind, socket, name = EngineKind(database["engine"]), Path(database["socket"]), database["name"]
        user, password = login["user"]["name"], login["password"]
        healthy = await faults(root, site)
        escaped = name.replace("_", r"\_")
        revoked_by = await ask(kind, socket, f"REVOKE ALL PRIVILEGES ON `{escaped}`.* FROM `{user}`@`localhost`;")
        revoked = await faults(root, site)
        first = await repaired(root, site, "database")
        dropped_by = await ask(kind, socket, f"DROP USER `{user}`@`localhost`;")
        dropped = await faults(root, site)
        second = await repaired(root, site, "database")
        works = await ask(kind, socket, "SELECT 1;", name, user, password)
        after = await faults(root, site)

    assert healthy == {}
    assert revoked_by.ok, revoked_by
    assert dropped_by.ok, dropped_by
    assert list(revoked) == ["database"]
    assert list(dropped) == ["database"]
    assert (first["status"], second["status"]) == ("succeeded", "succeeded"), (first, second)
    assert works.ok, works
    assert after == {}
