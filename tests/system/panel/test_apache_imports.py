"""A site that a real Apache serves from a real MariaDB comes over SSH, and answers here as it did there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from svc_actors.webhooks.settings import NETWORKS_VARIABLE
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import DATABASE, MAIN, PASSWORD, Tree
from tests.support.old_host import USER, OldHost, open_old_host, place
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

HTACCESS: Final = b"""Options -Indexes
<IfModule mod_rewrite.c>
RewriteEngine On
RewriteBase /
RewriteRule ^index\\.php$ - [L]
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteRule . /index.php [L]
</IfModule>
<FilesMatch "\\.(sql|log)$">
Require all denied
</FilesMatch>
"""
ASKS: Final = """AuthType Basic
AuthName "Members only"
AuthUserFile "{named}"
Require {require}
"""
PASSWORDS: Final = b"""ada:$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/
bob:$2y$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA.
joe:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=
"""
"""As htpasswd writes it; each password is "secret"."""
PROTECTED: Final = {
    "/members/": 401,
    "/members/list.txt": 401,
    "/members/board/list.txt": 401,
    "/members/board/.htpasswd": 403,
    "/joes/": 401,
}
ASKED: Final = (
    *("/", "/index.php", "/news/of-today?page=2", "/many/", "/many/0/7.txt", "/latest/bild_1.png"),
    *("/Größe/日本.html", "/INDEX.html", "/.htaccess", "/dump.sql", "/private/members.txt", "/private/"),
    *PROTECTED,
)
SIGNED_IN: Final = ("ada:secret", "bob:secret", "joe:secret", "ada:wrong", "eve:secret")


@pytest.fixture
async def old_host() -> AsyncIterator[OldHost]:
    tree = foreign.model(500)[MAIN]
    tree.files |= {"index.php": foreign.ASKING, ".htaccess": HTACCESS, "dump.sql": b"-- of everybody"}
    tree.files |= {"private/members.txt": b"ada", "private/.htaccess": b"Require all denied\n"}
    async with open_old_host(MAIN, tree, foreign.DUMP) as host:
        for folder, named, require in (
            ("members", host.home / ".htpasswds/members", "valid-user"),
            ("members/board", host.root / "members/board/.htpasswd", "user ada eve"),
            ("joes", host.home / ".htpasswds/members", "user joe"),
        ):
            place(
                Tree(
                    {
                        f"{folder}/index.html": f"of {folder}".encode(),
                        f"{folder}/list.txt": f"list of {folder}".encode(),
                        f"{folder}/.htaccess": ASKS.format(named=named, require=require).encode(),
                    }
                ),
                host.root,
            )
            place(Tree({str(named): PASSWORDS}), host.root)
        yield host


@pytest.fixture
async def panel(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PanelPrograms]:
    monkeypatch.setenv(NETWORKS_VARIABLE, "127.0.0.0/8")
    async with open_panel_programs() as programs:
        await programs.start()
        await programs.customer()
        yield programs


async def ended(client: httpx.AsyncClient, path: str, going: tuple[str, ...]) -> dict[str, Any]:
    with trio.fail_after(120):
        while True:
            found: dict[str, Any] = (await client.get(path)).json()
            if found["status"] not in going:
                return found
            await trio.sleep(0.1)  # It is done outside of this process.


async def succeeded(client: httpx.AsyncClient, job_id: int) -> None:
    job = await ended(client, f"/jobs/{job_id}", ("queued", "running"))
    assert job["status"] == "succeeded", job


async def test_a_site_of_a_live_apache_comes_by_ssh_and_answers_as_it_did(
    panel: PanelPrograms, old_host: OldHost
) -> None:
    wanted: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": old_host.sshd.port,
        "user": "root",
        "domain": MAIN,
        "folders": [str(old_host.root)],
        "private_key": await old_host.sshd.new_key(),
        "database": DATABASE,
        "database_user": USER,
        "database_password": PASSWORD,
        "owner_email": "ada@example.com",
    }
    before, opened = await answers(old_host.http_port), await by_password(old_host.http_port)
    async with panel.client() as root:
        shown = (await root.post("/imports/ssh", json=wanted)).json()
        wanted["host_key"] = shown["host_keys"][0]["fingerprint"]
        begun = (await root.post("/imports/ssh", json=wanted)).json()["begun"]
        path = f"/imports/{begun['id']}"
        imported = await ended(root, path, ("fetching", "analysing"))
        assert imported["status"] == "ready", (await root.get(f"/jobs/{begun['job_id']}/log?after=0")).text
        await succeeded(root, (await root.post(f"{path}/apply", json={})).json()["id"])
        log = (await root.get(f"/jobs/{begun['job_id']}/log?after=0")).text
        site = (await root.get("/sites")).json()["items"][0]
        compared = {"address": "127.0.0.1", "https": False, "port": old_host.http_port}
        job = (await root.post(f"/sites/{site['id']}/migration/verify", json=compared)).json()
        await succeeded(root, job["id"])
        report = (await root.get(f"/sites/{site['id']}/migration/verify")).json()

    public = panel.data / "sites" / site["account"] / "public"
    there = {str(file.relative_to(old_host.root)): file.read_bytes() for file in regular(old_host)}
    here = {name: (public / name).read_bytes() for name in there if (public / name).is_file()}
    after, opens = await answers(panel.http_port), await by_password(panel.http_port)
    assert {name for name in there if here.get(name) != there[name]} == {"wp-config.php"}
    assert before["/"] == (200, "Größe – 日本".encode())
    assert before["/news/of-today?page=2"] == before["/"]
    denied = ("/many/", "/.htaccess", "/dump.sql", "/private/members.txt", "/private/")
    assert {before[path][0] for path in denied} == {after[path][0] for path in denied} == {403}
    assert {path for path in ASKED if served(after[path]) != served(before[path])} == set()
    assert site["status"] == "active"
    assert {path: before[path][0] for path in PROTECTED} == PROTECTED
    assert {path: after[path][0] for path in PROTECTED} == PROTECTED
    assert opens == opened
    assert opens["ada:secret /members/list.txt"] == (200, b"list of members")
    assert {asked for asked, (status, _) in opens.items() if status == 200} == {
        *(f"{login}:secret /members/list.txt" for login in ("ada", "bob", "joe")),
        *("ada:secret /members/board/list.txt", "joe:secret /joes/list.txt"),
    }
    members = {item["name"]: item for item in imported["plan"] if item["kind"] == "protected_path"}
    assert "eve (the file has no such login)" in members[f"{MAIN}/members/board"]["reason"]
    assert not (panel.data / "sites" / site["account"] / "private" / ".svc-import").exists()
    assert [verifier for verifier in PASSWORDS.decode().split() if verifier[4:] in f"{imported}{log}"] == []
    assert (report["differences"], report["urls"] > 400) == ([], True)
    # Nobody has asked an authority for one.
    assert [check["name"] for check in report["checks"] if not check["ok"]] == ["certificate"]


def regular(host: OldHost) -> list[Path]:
    return [path for path in host.root.rglob("*") if path.is_file() and not path.is_symlink()]


async def answers(port: int) -> dict[str, tuple[int, bytes]]:
    found = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Host": MAIN}) as visitor:
        for path in ASKED:
            answer = await visitor.get(path)
            found[path] = (answer.status_code, answer.content)
    return found


async def by_password(port: int) -> dict[str, tuple[int, bytes]]:
    found = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Host": MAIN}) as visitor:
        for login in SIGNED_IN:
            for folder in ("members", "members/board", "joes"):
                path = f"/{folder}/list.txt"
                answer = await visitor.get(path, auth=httpx.BasicAuth(*login.split(":")))
                found[f"{login} {path}"] = (answer.status_code, answer.content if answer.status_code == 200 else b"")
    return found


def served(answer: tuple[int, bytes]) -> bytes | None:
    """What a visitor is given; of what is refused each server has words, and one of 403 and 404, of its own."""
    status, content = answer
    return content if status == 200 else None
