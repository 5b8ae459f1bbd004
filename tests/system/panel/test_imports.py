"""Archives of other hosts on a real server: nginx, PHP and MariaDB serve the same site, whichever host packed it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, DATABASE, MAIN, Tree
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FILES: Final = 2000
FORMATS: Final[Mapping[str, Callable[[dict[str, Tree]], bytes]]] = {
    "cpanel": foreign.cpanel,
    "directadmin": foreign.directadmin,
    "hestia": foreign.hestia,
    "virtualmin": foreign.virtualmin,
    "plesk": foreign.plesk,
    "tree": foreign.by_hand,
}


@pytest.fixture
async def panel() -> AsyncIterator[PanelPrograms]:
    async with open_panel_programs() as programs:
        await programs.start()
        await programs.customer()
        yield programs


async def ended(client: httpx.AsyncClient, job_id: int) -> dict[str, Any]:
    with trio.fail_after(120):
        while True:
            job: dict[str, Any] = (await client.get(f"/jobs/{job_id}")).json()
            if job["status"] not in ("queued", "running"):
                return job
            await trio.sleep(0.1)  # It is done outside of this process.


async def uploaded(client: httpx.AsyncClient, archive: bytes) -> str:
    """The path of the import, when its archive was read."""
    wanted = {"name": "backup.tar.gz", "size": len(archive), "owner_email": "ada@example.com"}
    began = (await client.post("/imports/upload", json=wanted)).json()
    path, size = f"/imports/{began['id']}", began["chunk_bytes"]
    for offset in range(0, len(archive), size):
        part = base64.b64encode(archive[offset : offset + size]).decode()
        answer = await client.put(f"{path}/upload", json={"offset": offset, "data_base64": part})
        assert answer.status_code == 200, answer.text
    answer = await client.post(f"{path}/upload/finish", json={"sha256": hashlib.sha256(archive).hexdigest()})
    assert answer.status_code == 200, answer.text
    job = await ended(client, answer.json()["job_id"])
    assert job["status"] == "succeeded", job
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_whichever_host_packed_it_the_site_is_the_same_and_answers(panel: PanelPrograms) -> None:
    trees = foreign.model(FILES)
    trees[MAIN].files["index.php"] = foreign.ASKING
    async with panel.client() as root:
        for number, (name, pack) in enumerate(FORMATS.items()):
            domain = f"shop-{number}.example"
            path = await uploaded(root, pack(trees))
            renamed = [f"{MAIN}={domain}", *([f"{ADDON}=blog-{number}.example"] if name != "tree" else [])]
            begun = await root.post(f"{path}/apply", json={"domains": renamed})
            assert begun.status_code == 200, begun.text
            job = await ended(root, begun.json()["id"])
            assert job["status"] == "succeeded", (name, job)
            sites = {each["domain"]: each for each in (await root.get("/sites")).json()["items"]}
            public = panel.data / "sites" / sites[domain]["account"] / "public"
            placed = files_of(public)
            front = await panel.visit(domain)
            picture = await panel.visit(domain, "/latest/bild_1.png")
            page = await panel.visit(domain, "/Größe/日本.html")
            secret = await panel.visit(domain, "/wp-config.php")

            assert {file: placed[file] for file in placed if file != "wp-config.php"} == {
                file: content for file, content in linked(trees[MAIN]).items() if file != "wp-config.php"
            } | ({"absolute.png": trees[MAIN].files["wp-content/uploads/bild_1.png"]} if name == "cpanel" else {}), name
            assert (front.status_code, front.text) == (200, "Größe – 日本"), (name, front.text)
            assert picture.content == trees[MAIN].files["wp-content/uploads/bild_1.png"], name
            assert page.text == "<p>Größe – 日本</p>", name
            assert DATABASE not in secret.text
            if name != "tree":
                assert (await panel.visit(f"blog-{number}.example")).text == "<h1>blog of Ada</h1>", name


async def test_an_application_below_another_site_runs_with_what_lies_beside_its_document_root(
    panel: PanelPrograms,
) -> None:
    portal = f"portal.{MAIN}"
    packed = foreign.Packer()
    packed.file("cp/ada", f"DNS={MAIN}\nUSER=ada\n")
    packed.file("userdata/main", f"main_domain: {MAIN}\nsub_domains:\n  - {portal}\n")
    packed.file(f"userdata/{MAIN}", "documentroot: /home/ada/public_html\nhomedir: /home/ada\n")
    packed.file(f"userdata/{portal}", "documentroot: /home/ada/public_html/portal/public\nhomedir: /home/ada\n")
    packed.file("homedir/public_html/index.html", "<h1>shop</h1>")
    packed.file("homedir/public_html/portal/vendor/autoload.php", "<?php function said() { return 'loaded'; }", 0o600)
    packed.file("homedir/public_html/portal/.env", "APP_NAME=Portal\n", 0o600)
    packed.file(
        "homedir/public_html/portal/public/index.php",
        "<?php require __DIR__ . '/../vendor/autoload.php';"
        "echo said(), ' ', parse_ini_file(__DIR__ . '/../.env')['APP_NAME'];",
    )
    async with panel.client() as root:
        path = await uploaded(root, packed.gzipped())
        job = await ended(root, (await root.post(f"{path}/apply", json={})).json()["id"])
        assert job["status"] == "succeeded", job

        assert (await panel.visit(portal)).text == "loaded Portal"
        assert (await panel.visit(MAIN)).text == "<h1>shop</h1>"
        for hidden in ("/portal/public/index.php", "/portal/vendor/autoload.php", "/portal/.env"):
            assert (await panel.visit(MAIN, hidden)).status_code == 404
        for hidden in ("/../vendor/autoload.php", "/vendor/autoload.php", "/.env"):
            assert "APP_NAME" not in (await panel.visit(portal, hidden)).text


def linked(tree: Tree) -> dict[str, bytes]:
    """What is read of it with its links followed to files."""
    return tree.files | {"wp-content/uploads/up.png": tree.files["wp-content/uploads/bild_1.png"]}
