"""Databases of a real panel: real engines, real accounts, and a core that is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from svc_webhost.databases import EngineKind
from tests.support.databases import ask
from tests.support.panel_programs import PanelPrograms, shared_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

TABLE = "CREATE TABLE things (id int PRIMARY KEY, name varchar(100)); INSERT INTO things VALUES (1, 'Größe');"
READ = "SELECT name FROM things ORDER BY id;"


@pytest.fixture(scope="module")
def programs() -> Iterator[PanelPrograms]:
    with shared_panel_programs() as started:
        trio.run(started.customer)
        yield started


@pytest.fixture
async def panel(programs: PanelPrograms) -> PanelPrograms:
    """Its core runs, whatever the test before has killed."""
    if not programs.core.running():
        await programs.start()
    return programs


async def sites_of(panel: PanelPrograms, number: int) -> list[dict[str, Any]]:
    """That no other test has."""
    return [await panel.site(f"{uuid4().hex[:8]}.example") for _ in range(number)]


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    with trio.fail_after(120):
        while job["status"] in ("queued", "running"):
            await trio.sleep(0.1)  # It is done outside of this process.
            job = (await client.get(f"/jobs/{job['id']}")).json()
    return job


async def write(client: httpx.AsyncClient, site: dict[str, Any], sql: str) -> None:
    wanted = {"path": "private/dump.sql", "content": sql, "replace": True}
    answer = await client.put(f"/sites/{site['id']}/files/content", json=wanted)
    assert answer.status_code == 200, answer.text


async def create(
    client: httpx.AsyncClient, site: dict[str, Any], kind: EngineKind
) -> tuple[dict[str, Any], tuple[EngineKind, Path, str, str, str]]:
    """A database, and how its user asks it."""
    wanted = {"site_id": site["id"], "name": "shop", "engine": kind.value, "user": "ada"}
    made = await post(client, "/databases", wanted)
    database, login = made["database"], made["login"]
    return database, (kind, Path(database["socket"]), database["name"], login["user"]["name"], login["password"])


async def clients_of(how: tuple[EngineKind, Path, str, str, str]) -> set[bytes]:
    """The processes of an import as the owner. The next core has others of its own, which put back what was there."""
    client = f"mariadb .*{how[1]} --user=owner_{how[2]} --sandbox --batch"
    return set((await trio.run_process(["pgrep", "-f", client], capture_stdout=True, check=False)).stdout.split())


async def run(how: tuple[EngineKind, Path, str, str, str], sql: str) -> str:
    kind, socket, database, user, password = how
    answer = await ask(kind, socket, sql, database, user, password)
    return answer.out if answer.ok else f"refused: {answer.err}"


async def test_databases_of_both_engines_live_and_go_with_their_site(panel: PanelPrograms) -> None:
    site, other = await sites_of(panel, 2)
    async with panel.client() as root:
        for kind in EngineKind:
            database, how = await create(root, site, kind)
            stranger, other_how = await create(root, other, kind)
            await run(how, TABLE)
            await run(other_how, TABLE)
            export = await ended(root, await post(root, f"/databases/{database['id']}/export", {}))
            listed = (await root.get(f"/databases/exports?database={database['id']}")).json()["items"]
            await run(how, "DROP TABLE things;")
            damaged = await run(how, READ)
            wanted = {"export": listed[0]["id"], "replace": True}
            imported = await ended(root, await post(root, f"/databases/{database['id']}/import", wanted))
            restored = await run(how, READ)
            await write(
                root, site, f"DROP TABLE {stranger['name']}.things;\n" if kind is EngineKind.MARIADB else "\\! id\n"
            )
            hostile = await ended(
                root, await post(root, f"/databases/{database['id']}/import", {"path": "private/dump.sql"})
            )
            foreign = await ask(kind, how[1], READ, stranger["name"], how[3], how[4])

            assert export["status"] == "succeeded", export
            assert damaged.startswith("refused")
            assert imported["status"] == "succeeded", imported
            assert restored == "Größe"
            assert hostile["status"] == "failed"
            assert "denied" in hostile["error"]["message"] or "restricted" in hostile["error"]["message"]
            assert not foreign.ok
            assert await run(other_how, READ) == "Größe"

        gone = await root.request(
            "DELETE", f"/sites/{site['id']}", json={"confirm": site["domain"], "final_backup": False}
        )
        deleted = await ended(root, gone.json())
        databases = (await root.get("/databases")).json()["items"]
        left = [each for each in databases if each["site_id"] in (site["id"], other["id"])]
        accounts = await ask(EngineKind.MARIADB, Path(left[0]["socket"]), "SELECT User FROM mysql.global_priv;")

    assert deleted["status"] == "succeeded", deleted
    assert {each["name"] for each in left} == {f"s{other['number']}_shop"}
    assert f"s{site['number']}" not in accounts.out


async def test_an_import_that_replaces_is_undone_by_a_kill_and_can_be_made_again(
    panel: PanelPrograms,
) -> None:
    [site] = await sites_of(panel, 1)
    async with panel.client() as root:
        database, how = await create(root, site, EngineKind.MARIADB)
        engine = await ask(EngineKind.MARIADB, how[1], "SELECT @@global.pid_file;")
        pid = Path(engine.out).read_text()
        await run(how, "CREATE TABLE orders (id int); INSERT INTO orders VALUES (7);")
        await write(root, site, TABLE + "SELECT SLEEP(300);")
        wanted = {"path": "private/dump.sql", "replace": True}
        job = await post(root, f"/databases/{database['id']}/import", wanted)
        with trio.fail_after(60):
            while "SLEEP" not in (await ask(EngineKind.MARIADB, how[1], "SHOW PROCESSLIST;")).out:
                await trio.sleep(0.1)  # It is done outside of this process.
        clients = await clients_of(how)

    await panel.core.kill()
    await panel.start()

    async with panel.client() as root:
        interrupted = (await root.get(f"/jobs/{job['id']}")).json()
        left = clients & await clients_of(how)
        with trio.fail_after(90):
            while (put_back := await run(how, "SELECT id FROM orders;")) != "7":
                await trio.sleep(0.1)  # It is done outside of this process.
        await write(root, site, "DROP TABLE IF EXISTS things; " + TABLE)
        again = await ended(root, await post(root, f"/databases/{database['id']}/import", {"path": "private/dump.sql"}))

    assert (interrupted["status"], interrupted["error"]["message"]) == ("failed", "interrupted: core restarted")
    assert clients
    assert not left
    assert put_back == "7"
    assert again["status"] == "succeeded", again
    assert await run(how, READ) == "Größe"
    assert Path(engine.out).read_text() == pid


def nested(folder: Path, levels: int, uid: int) -> None:
    """A path of this length could not be named."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        os.chown("d", uid, uid, dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


async def test_an_account_ends_whatever_its_customer_has_made_and_so_does_a_site_of_another(
    panel: PanelPrograms,
) -> None:
    await panel.customer("mal@example.com")
    site = await panel.site(f"{uuid4().hex[:8]}.example", "mal@example.com")
    [other] = await sites_of(panel, 1)
    async with panel.client() as root:
        database, how = await create(root, site, EngineKind.POSTGRESQL)
        _, other_how = await create(root, other, EngineKind.POSTGRESQL)
        strangers = f"{other_how[3]}, owner_{other_how[2]}, reader_{other_how[2]}"
        made = await run(
            how,
            f"CREATE TABLE gift (a int); GRANT ALL ON gift TO {strangers}; "
            f"ALTER DATABASE {database['name']} SET local_preload_libraries = 'nothing'; "
            f"ALTER DATABASE {database['name']} IS_TEMPLATE true;",
        )
        assert made == "", made
        home = panel.data / "sites" / site["account"]
        nested(home / "private", 3_000, FIRST_UID + site["number"])

        gone = await root.request(
            "DELETE", f"/sites/{other['id']}", json={"confirm": other["domain"], "final_backup": False}
        )
        deleted = await ended(root, gone.json())
        over = await root.request("DELETE", f"/accounts/{site['owner_id']}", json={"confirm": "mal@example.com"})
        terminated = await ended(root, over.json())
        left = await ask(EngineKind.POSTGRESQL, how[1], "SELECT rolname FROM pg_roles;")

    assert deleted["status"] == "succeeded", deleted
    assert terminated["status"] == "succeeded", terminated
    assert not home.exists()
    for number in (site["number"], other["number"]):
        assert f"s{number}_" not in left.out
