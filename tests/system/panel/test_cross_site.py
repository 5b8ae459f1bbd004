"""One customer's code against another customer and against the panel: with real accounts, PHP, applications, tasks and
engines of one started panel. Nothing that it tries succeeds."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from svc_webhost.databases import EngineKind
from tests.support.databases import ask
from tests.support.panel_programs import PanelPrograms, shared_panel_programs
from tests.system.panel import hostile

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SECRET = "what only Bob knows"
MARK = "left-by-one-site"
MEMORY_KEY = 0x5B000000 + secrets.randbits(24)
OWN_MEMORY_KEY = 0x5A000000 + secrets.randbits(24)
MOST_FILES = 150
APP = """
import subprocess, sys
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")] + HEADERS.get(environ["PATH_INFO"], []))
    if environ["PATH_INFO"] != "/attack":
        return [b"well"]
    return [subprocess.run([sys.executable, "hostile.py", "targets.json"], capture_output=True).stdout]
"""
PHP = "<?php passthru('/usr/bin/python3 ../private/hostile.py ../private/targets.json 2>&1');"
INNER = ("/private/secret", "/.well-known/acme-challenge/../../private/secret", "/generation", "//etc/passwd")
"""What nginx is told to answer with, by the header that it takes for an order."""


@dataclass(frozen=True)
class Database:
    socket: Path
    name: str
    user: str
    password: str


@dataclass(frozen=True)
class World:
    """Ada attacks, with everything that she has; Bob has the same."""

    panel: PanelPrograms
    ada: dict[str, Any]
    ada_app: dict[str, Any]
    bob: dict[str, Any]
    bob_app: dict[str, Any]
    databases: dict[tuple[str, EngineKind], Database]

    def home(self, site: dict[str, Any]) -> Path:
        return self.panel.data / "sites" / str(site["account"])

    def put(self, site: dict[str, Any], name: str, text: str) -> Path:
        path = self.home(site) / name
        path.write_text(text)
        os.chown(path, FIRST_UID + site["number"], FIRST_UID + site["number"])
        return path

    def link(self, site: dict[str, Any], name: str, target: Path) -> None:
        """As the site makes it: who owns a link decides about it."""
        path = self.home(site) / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        os.lchown(path, FIRST_UID + site["number"], FIRST_UID + site["number"])

    def targets(self, own: dict[str, Any]) -> dict[str, Any]:
        """Whatever there is of the panel and of Bob; found by root."""
        data, home = self.panel.data, self.home(own)
        below = sorted(data.glob("*/*/*")) + sorted(data.glob("*/*")) + sorted(data.glob("*"))
        # Its own settings, which are shown to PHP, and its application's own environment.
        account = str(own["account"])
        seen = (home, data / "php" / account, data / "run" / "apps" / f"{account}-1.variables")
        foreign = [path for path in below if path.is_file() and not any(map(path.is_relative_to, seen))]
        secrets = [self.home(site) / name for site in (self.bob, self.bob_app) for name in ("secret", "private/secret")]
        sockets = [path for path in data.rglob("*") if path.is_socket() and "shared" not in path.parts]
        assert len(foreign) > 20
        assert {"keeper.sock", "nginx.sock"} <= {path.name for path in sockets}
        return {
            "files": [*map(str, [*secrets, self.home(self.bob), *islice(foreign, MOST_FILES), "/etc/shadow"])],
            "sockets": [str(path) for path in [*sockets, self.panel.socket]],
            "processes": self.foreign_processes(),
            "data": str(data),
            "secret": str(secrets[0]),
            "home": str(home),
            "mark": f"{MARK}-{own['number']}",
            "memory_key": MEMORY_KEY,
            "own_memory_key": OWN_MEMORY_KEY,
        }

    def foreign_processes(self) -> list[int]:
        of_bob = {FIRST_UID + site["number"] for site in (self.bob, self.bob_app)}
        found = [self.panel.core.process.pid] if self.panel.core.process else []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = Path("/proc", entry, "cmdline").read_bytes()
                if os.stat(f"/proc/{entry}").st_uid in of_bob or os.fsencode(self.panel.data / "nginx") in command:
                    found.append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                pass
        assert len(found) > 4
        return found


async def built(panel: PanelPrograms) -> World:
    await panel.customer()
    await panel.customer("bob@example.com")
    sites: dict[str, dict[str, Any]] = {}
    for name in ("ada", "bob"):
        owner = f"{name}@example.com"
        sites[name] = await panel.site(f"{name}.example.org" if name == "ada" else "bob.example.net", owner, type="php")
        domain = "app.example.org" if name == "ada" else "app.example.net"
        sites[f"{name}-app"] = await panel.site(domain, owner, type="app", runtime="python", entry="app:application")
    world = World(panel, sites["ada"], sites["ada-app"], sites["bob"], sites["bob-app"], {})
    for site in (world.bob, world.bob_app):
        world.put(site, "secret", SECRET)
        world.put(site, "private/secret", SECRET)
        world.put(site, "public/wp-config.php", f"<?php // {SECRET}")
        # What a careless owner does.
        (world.home(site) / "secret").chmod(0o666)
    world.put(world.bob, "public/index.php", "<?php touch('/tmp/of-bob'); echo 'bob is well';")
    headers = {f"/{number}": [["X-Accel-Redirect", inner]] for number, inner in enumerate(INNER)}
    told = f"HEADERS = {{path: [tuple(each) for each in some] for path, some in {headers!r}.items()}}\n"
    async with panel.client() as root:
        for site in (world.ada_app, world.bob_app):
            world.put(site, "app.py", told + APP)
            started = await root.post(f"/sites/{site['id']}/app/start", json={})
            assert started.status_code == 200, started.text
        for name in ("ada", "bob"):
            for kind in EngineKind:
                wanted = {"site_id": sites[name]["id"], "name": "shop", "engine": kind.value, "user": name}
                made = await root.post("/databases", json=wanted)
                assert made.status_code < 300, made.text
                database, login = made.json()["database"], made.json()["login"]
                world.databases[name, kind] = Database(
                    Path(database["socket"]), database["name"], login["user"]["name"], login["password"]
                )
    await panel.visit("bob.example.net")
    return world


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with shared_panel_programs() as panel:
        built_world = trio.run(built, panel)
        libc = ctypes.CDLL(None)
        memory = libc.shmget(MEMORY_KEY, 4096, 0o1666)
        yield built_world
        libc.shmctl(memory, 0, None)


async def tried_by_php(world: World) -> str:
    shutil.copy(hostile.__file__, world.home(world.ada) / "private" / "hostile.py")
    (world.home(world.ada) / "private" / "hostile.py").chmod(0o644)
    world.put(world.ada, "private/targets.json", json.dumps(world.targets(world.ada)))
    world.put(world.ada, "public/attack.php", PHP)
    return (await world.panel.visit("ada.example.org", "/attack.php")).text


async def tried_by_a_task(world: World) -> str:
    shutil.copy(hostile.__file__, world.home(world.ada) / "private" / "hostile.py")
    world.put(world.ada, "private/targets.json", json.dumps(world.targets(world.ada)))
    async with world.panel.client() as root:
        wanted = {
            "name": "attack",
            "kind": "python",
            "path": "private/hostile.py",
            "args": ["private/targets.json"],
            "cron": "0 4 1 1 *",
            "enabled": False,
        }
        task = (await root.post(f"/sites/{world.ada['id']}/schedules", json=wanted)).json()
        run = (await root.post(f"/schedules/{task['id']}/run", json={})).json()
        with trio.fail_after(120):
            while (told := (await root.get(f"/schedules/{task['id']}/runs/{run['id']}")).json())["ended_at"] is None:
                await trio.sleep(0.1)  # It is done outside of this process.
    output: str = told["output"]
    return output


async def tried_by_an_application(world: World) -> str:
    shutil.copy(hostile.__file__, world.home(world.ada_app) / "hostile.py")
    world.put(world.ada_app, "targets.json", json.dumps(world.targets(world.ada_app)))
    return (await world.panel.visit("app.example.org", "/attack")).text


@pytest.mark.parametrize("door", ["php", "task", "application"])
async def test_the_code_of_a_site_gets_at_nothing_of_another_nor_of_the_panel(world: World, door: str) -> None:
    own = world.ada_app if door == "application" else world.ada
    tried = {"php": tried_by_php, "task": tried_by_a_task, "application": tried_by_an_application}[door]

    said = await tried(world)

    assert "TRIED " in said, said[:4000]
    told = json.loads(said.partition("TRIED ")[2].splitlines()[0])
    seen = told["seen"]
    assert told["succeeded"] == []
    assert (seen["uid"], seen["groups"]) == (FIRST_UID + own["number"], [])
    assert seen["owners"] == [seen["uid"]]
    assert all("of-bob" not in names for names in seen["shared"].values())
    assert not Path("/tmp", f"{MARK}-{own['number']}").exists()
    assert seen["memory"] is False
    assert ctypes.CDLL(None).shmget(OWN_MEMORY_KEY, 0, 0) == -1
    data, account = str(world.panel.data), str(own["account"])
    assert [each for each in seen["descriptors"] if data in each and account not in each] == []
    assert [each for each in seen["data"] if not _is_own(each, account)] == []
    assert "PYTEST_CURRENT_TEST" not in seen["environment"]  # That is the core's.
    assert (await world.panel.visit("bob.example.net")).text == "bob is well"
    assert (world.home(world.bob) / "secret").read_text() == SECRET


def _is_own(path: str, account: str) -> bool:
    """Of what is seen of the data folder: the way to it, or what is meant to be seen."""
    if path in ("php", "run", "run/apps", "sites") or path.startswith("run/shared"):
        return True
    return path == f"run/apps/{account}-1.variables" or path.split("/")[1] == account


@pytest.mark.parametrize("link", ["private/secret", "secret", "public/wp-config.php", "public", "."])
async def test_no_link_of_a_site_leads_a_visitor_to_anothers_file(world: World, link: str) -> None:
    world.link(world.ada, "public/link", world.home(world.bob) / link)

    answers = [await world.panel.visit("ada.example.org", f"/link{below}") for below in ("", "/", "/secret")]

    assert all(SECRET not in answer.text for answer in answers)
    assert all(answer.status_code >= 400 for answer in answers), [answer.status_code for answer in answers]


async def test_no_path_of_a_visitor_and_no_header_of_an_application_leads_out_of_the_site(world: World) -> None:
    account = world.bob["account"]
    world.link(world.ada, "public/users.txt", Path("/etc/passwd"))
    above = [f"/{up}{up}{account}/private/secret" for up in ("../", "..%2f", "%2e%2e/", "..%5c", ".%00./", "....//")]
    paths = [*above, "/users.txt", f"/.well-known/acme-challenge/..%2f..%2fsites%2f{account}%2fsecret"]
    paths.append("/.well-known/acme-challenge../web/key.pem")

    answers = []
    for path in paths:
        answers.append(await _raw(world.panel.http_port, "ada.example.org", path))
    for number in range(len(INNER)):
        answers.append((await world.panel.visit("app.example.org", f"/{number}")).text)

    assert [text for text in answers if SECRET in text or "root:x:0" in text or "PRIVATE KEY" in text] == []


async def _raw(port: int, host: str, path: str) -> str:
    """The answer to a path that no client would send as it is."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return b"".join([piece async for piece in stream]).decode(errors="replace")


async def test_of_what_the_panel_runs_only_the_public_ports_listen(world: World) -> None:
    """What listens on the loopback interface every site's code can connect to."""
    panel = world.panel
    of_panel = {inode for pid in _processes_of(panel) for inode in _sockets_of(pid)}

    tcp = {port for name in ("tcp", "tcp6") for inode, port in _listening(name) if inode in of_panel}
    abstract = [
        words[7]
        for words in map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:])
        if len(words) > 7 and words[7].startswith("@") and words[6] in of_panel
    ]

    assert {panel.http_port, panel.https_port, panel.dns_port} <= tcp
    assert tcp <= {panel.http_port, panel.https_port, panel.dns_port, panel.sftp_port}
    assert abstract == []


def _processes_of(panel: PanelPrograms) -> list[int]:
    """The core, and whatever has an open file or an argument of the panel's data folder."""
    found = [panel.core.process.pid] if panel.core.process else []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.fsencode(panel.data) in Path("/proc", entry, "cmdline").read_bytes():
                found.append(int(entry))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def _sockets_of(pid: int) -> Iterator[str]:
    try:
        for entry in Path("/proc", str(pid), "fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
    except (FileNotFoundError, ProcessLookupError):
        pass


def _listening(name: str) -> Iterator[tuple[str, int]]:
    for line in Path("/proc/net", name).read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            yield words[9], int(words[1].rpartition(":")[2], 16)


MARIADB_ATTACKS = (
    "SELECT * FROM {other}.things",
    "INSERT INTO {other}.things VALUES (2)",
    "USE {other}",
    "DROP DATABASE {other}",
    "CREATE DATABASE s1_owned",
    "GRANT ALL ON {other}.* TO `{user}`@localhost",
    "GRANT ALL ON *.* TO `{user}`@localhost",
    "CREATE USER owned@localhost",
    "SET PASSWORD FOR `{victim}`@localhost = PASSWORD('x')",
    "SHOW GRANTS FOR `{victim}`@localhost",
    "SELECT * FROM mysql.global_priv",
    "SET GLOBAL general_log = 1",
    "SET GLOBAL max_connections = 1",
    "SELECT 1 INTO OUTFILE '/tmp/owned'",
    "LOAD DATA INFILE '/etc/passwd' INTO TABLE things",
    "INSTALL SONAME 'ha_connect'",
    "CREATE FUNCTION owned RETURNS INTEGER SONAME 'owned.so'",
    "CREATE DEFINER=root@localhost VIEW owned AS SELECT 1",
    "CREATE DEFINER=root@localhost EVENT owned ON SCHEDULE EVERY 1 DAY DO DROP DATABASE {other}",
    "FLUSH TABLES WITH READ LOCK",
    "SHUTDOWN",
    "CREATE SERVER owned FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1')",
    "RENAME TABLE things TO {other}.stolen",
    "CREATE TRIGGER {other}.owned BEFORE INSERT ON {other}.things FOR EACH ROW SET NEW.id = 0",
)
POSTGRESQL_ATTACKS = (
    "SELECT * FROM pg_authid",
    "SELECT * FROM pg_shadow",
    "COPY things FROM '/etc/passwd'",
    "COPY things FROM PROGRAM 'id'",
    "COPY things TO '/tmp/owned'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('.')",
    "SELECT lo_import('/etc/passwd')",
    "CREATE ROLE owned SUPERUSER",
    "ALTER ROLE {user} SUPERUSER",
    "ALTER ROLE {user} CONNECTION LIMIT -1",
    "ALTER ROLE {victim} PASSWORD 'x'",
    "GRANT owner_{other} TO {user}",
    "GRANT pg_read_all_data TO {user}",
    "SET ROLE {victim}",
    "SET SESSION AUTHORIZATION postgres",
    "ALTER SYSTEM SET log_statement = 'all'",
    "CREATE DATABASE owned",
    "DROP DATABASE {other}",
    "ALTER DATABASE {other} RENAME TO owned",
    "CREATE TABLESPACE owned LOCATION '/tmp'",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION adminpack",
    "CREATE EXTENSION file_fdw",
    "CREATE LANGUAGE plpython3u",
    "CREATE FUNCTION owned() RETURNS int AS '/tmp/owned.so', 'owned' LANGUAGE C",
    "LOAD '/tmp/owned.so'",
    "CREATE EVENT TRIGGER owned ON ddl_command_start EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE SUBSCRIPTION owned CONNECTION 'host=127.0.0.1' PUBLICATION owned",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{victim}'",
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = '{victim}'",
    "SELECT pg_reload_conf()",
    "CHECKPOINT",
    "\\connect {other}",
    "\\connect postgres",
    "\\connect template1",
)


@pytest.mark.parametrize("kind", EngineKind)
async def test_a_user_of_a_database_does_nothing_to_anothers(world: World, kind: EngineKind) -> None:
    mine, other = world.databases["ada", kind], world.databases["bob", kind]
    uid = FIRST_UID + world.ada["number"]
    attacks = MARIADB_ATTACKS if kind is EngineKind.MARIADB else POSTGRESQL_ATTACKS
    for each in (mine, other):
        await ask(kind, each.socket, "CREATE TABLE things (id int); INSERT INTO things VALUES (1);", *_login(each))

    done = []
    async with trio.open_nursery() as others:
        await others.start(_connected, kind, other)
        for attack in attacks:
            words = attack.format(other=other.name, user=mine.user, victim=other.user)
            said = f"{words}\n" if words.startswith("\\") else f"{words};\n"
            answer = await ask(kind, mine.socket, said, *_login(mine), uid)
            if answer.ok:
                done.append(f"{words}: {answer.out}")
        if kind is EngineKind.MARIADB:
            # It says that it is done, and whom it has ended is to be seen below.
            await ask(kind, mine.socket, f"KILL USER `{other.user}`@localhost;", *_login(mine), uid)
        left = await _questions(kind, other)
        others.cancel_scope.cancel()
    for user in ("root", "postgres", "mysql", other.user, f"owner_{other.name}", f"owner_{mine.name}"):
        for password in ("", mine.password):
            answer = await ask(kind, mine.socket, "SELECT 1;", other.name, user, password, uid)
            if answer.ok:
                done.append(f"signed in as {user}")
    kept = await ask(kind, other.socket, "SELECT count(*) FROM things;", *_login(other))

    assert done == []
    assert "(3600)" in left
    assert kept.out == "1"


async def _connected(
    kind: EngineKind, database: Database, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Somebody whose question takes longer than any test."""
    sleep = "SLEEP" if kind is EngineKind.MARIADB else "pg_sleep"

    async def asks() -> None:
        await ask(kind, database.socket, f"SELECT {sleep}(3600);", *_login(database))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asks)
        with trio.fail_after(60):
            while "(3600)" not in await _questions(kind, database):
                await trio.sleep(0.05)  # It connects outside of this process.
        task_status.started()


async def _questions(kind: EngineKind, database: Database) -> str:
    """What all users ask at this moment."""
    shown = "SELECT query FROM pg_stat_activity WHERE pid <> pg_backend_pid();"
    return (await ask(kind, database.socket, "SHOW PROCESSLIST;" if kind is EngineKind.MARIADB else shown)).out


async def test_a_table_of_mariadb_lies_nowhere_but_in_its_database(world: World) -> None:
    mine = world.databases["ada", EngineKind.MARIADB]
    folder = world.panel.data / "run" / "shared" / "mariadb"

    for engine in ("InnoDB", "MyISAM", "Aria"):
        wanted = f"CREATE TABLE placed_{engine} (id int) ENGINE={engine} DATA DIRECTORY='{folder}';"
        await ask(EngineKind.MARIADB, mine.socket, wanted, *_login(mine))

    assert [path.name for path in folder.rglob("*") if "placed" in path.name] == []


async def test_a_user_of_mariadb_is_told_of_nothing_of_others(world: World) -> None:
    mine, other = world.databases["ada", EngineKind.MARIADB], world.databases["bob", EngineKind.MARIADB]
    questions = [
        "SHOW DATABASES",
        "SHOW PROCESSLIST",
        "SELECT * FROM information_schema.SCHEMATA",
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES",
        "SELECT * FROM information_schema.SCHEMA_PRIVILEGES",
        "SELECT * FROM information_schema.USER_PRIVILEGES",
        "SELECT NAME FROM information_schema.INNODB_SYS_TABLES",
        "SELECT LOAD_FILE('/etc/passwd')",
    ]

    told = [await ask(EngineKind.MARIADB, mine.socket, f"{question};", *_login(mine)) for question in questions]

    assert mine.name in told[0].out
    assert [answer.out for answer in told if other.name in answer.out or "root:x" in answer.out] == []


def _login(database: Database) -> tuple[str, str, str]:
    return database.name, database.user, database.password


async def test_sites_answer_all_the_while(world: World) -> None:
    """Nothing of the above has ended anything."""
    pages = [await world.panel.visit(host) for host in ("bob.example.net", "app.example.net", "app.example.org")]
    async with world.panel.client() as root:
        status = await root.get("/server/status")

    assert [page.text for page in pages] == ["bob is well", "well", "well"]
    assert status.status_code == httpx.codes.OK
