"""Sites that are fetched by SSH: the host key is confirmed first, and what comes is an import like any other."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.imports.foreign_hosts import HostKey, Remote, Secrets, order_of
from svc_actors.panel.jobs import JobRun
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.confined_client import SiteFolder
from tests.panel.imports.world import FolderAccounts, World, world_of
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import DATABASE, MAIN
from tests.support.panel import recorded_host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")

KEY = HostKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7Yf7vG1v0l4bLwV4mWm8gqk3xZ0mZb3mO8mCwWc1aB")
ROOT = "/var/www/shop"
ASKED: dict[str, Any] = {
    "host": "93.184.216.34",
    "user": "ada",
    "domain": MAIN,
    "folders": [ROOT],
    "password": "a very secret word",
    "database": DATABASE,
    "database_user": "ada_wp",
    "database_password": "another secret",
}


@dataclass
class RecordedForeignHosts:
    """The model site, at whatever address."""

    shown: list[HostKey] = field(default_factory=lambda: [KEY])
    dialled: list[str] = field(default_factory=list)
    orders: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None
    hangs: bool = False
    asked: trio.Event = field(default_factory=trio.Event)
    """Something was ordered of it."""
    more: dict[str, bytes] = field(default_factory=dict)
    """Of its files, by their paths there."""

    async def keys(self, address: str, port: int, uid: int) -> Sequence[HostKey]:
        self.dialled.append(address)
        return self.shown

    async def fetch(self, run: JobRun, folder: SiteFolder, order: dict[str, Any]) -> None:
        self.orders.append(order)
        self.asked.set()
        if self.hangs:
            await trio.sleep_forever()
        if self.problem is not None:
            raise unavailable(self.problem)
        archive = folder.path / "archive"
        archive.write_bytes(packed(order, self.more))
        os.chown(archive, folder.uid, folder.gid)


def packed(order: dict[str, Any], more: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    tree = foreign.model()[MAIN]
    with tarfile.TarFile(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        add(order["description"]["entry"], order["description"]["text"].encode())
        for question in order["asked"]:
            add(question["entry"], b'Welcome!\n\n["7.4.33", ["Core", "Zend OPcache", "ionCube Loader"]]\n')
        add(order["dump"]["entry"], foreign.DUMP.encode())
        for name, data in tree.files.items():
            add(f".{ROOT}/{name}", data)
        for path, data in more.items():
            add(path.lstrip("/"), data)
        for name, target in {**tree.links, "out": "/etc/passwd"}.items():
            link = tarfile.TarInfo(f".{ROOT}/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return content.getvalue()


@pytest.fixture
def hosts() -> RecordedForeignHosts:
    return RecordedForeignHosts()


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, hosts: RecordedForeignHosts) -> AsyncIterator[World]:
    server = replace(recorded_host(), accounts=FolderAccounts(tmp_path / "sites"), foreign_hosts=hosts)
    async with world_of(panel_database, tmp_path, server, new=True) as made:
        yield made


async def fetched(world: World, **asked: Any) -> dict[str, Any]:
    """The import, when its job has ended."""
    answer = await world.ada.post("/imports/ssh", {**ASKED, "host_key": KEY.fingerprint, **asked})
    assert answer.status_code == 200, answer.text
    begun = answer.json()["begun"]
    await world.job(begun["job_id"])
    return await world.shown(begun)


async def test_without_a_confirmed_key_the_host_is_asked_for_its_keys_and_nothing_begins(
    world: World, hosts: RecordedForeignHosts
) -> None:
    answer = await world.ada.post("/imports/ssh", ASKED)

    assert answer.json() == {"host_keys": [{"type": "ssh-ed25519", "fingerprint": KEY.fingerprint}], "begun": None}
    assert (await world.ada.get("/imports")).json()["items"] == []
    assert hosts.orders == []


async def test_another_key_than_the_confirmed_one_is_refused_and_nothing_begins(
    world: World, hosts: RecordedForeignHosts
) -> None:
    answer = await world.ada.post("/imports/ssh", {**ASKED, "host_key": f"SHA256:{'A' * 43}"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "another host key" in answer.json()["error"]["message"]
    assert hosts.orders == []


async def test_a_host_within_the_providers_networks_is_not_dialled(world: World, hosts: RecordedForeignHosts) -> None:
    answers = [await world.ada.post("/imports/ssh", {**ASKED, "host": host}) for host in ("127.0.0.1", "10.1.2.3")]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert hosts.dialled == []


async def test_what_is_fetched_is_planned_and_applied_as_an_archive_is(
    world: World, hosts: RecordedForeignHosts
) -> None:
    imported = await fetched(world)
    job = await world.applied(imported)
    site = await world.site(MAIN)
    public = world.home(site) / "public"

    assert (imported["status"], imported["format"], imported["source"]) == ("ready", "ssh", "ssh")
    assert {item["name"] for item in imported["plan"] if item["action"] == "leave_out"} >= {"var/www/shop/out"}
    assert job["status"] == "succeeded", job
    for path, content in foreign.model()[MAIN].files.items():
        assert path == "wp-config.php" or (public / path).read_bytes() == content
    assert not (public / "out").exists()
    assert set(world.mariadb.contents.values()) == {foreign.DUMP}
    assert hosts.orders[0]["host_key"] == KEY.text


async def test_what_opens_the_host_is_in_no_answer_log_or_audit_and_is_forgotten(
    world: World, panel_database: Database
) -> None:
    imported = await fetched(world)
    answer = await world.ada.get(f"/imports/{imported['id']}")
    rows = await panel_database.fetch("SELECT to_jsonb(imports)::text AS text, sealed_secret FROM imports")
    said = await panel_database.fetch(
        "SELECT to_jsonb(audit)::text AS text FROM audit UNION ALL SELECT to_jsonb(jobs)::text FROM jobs"
    )

    everything = answer.text + "".join(row["text"] for row in (*rows, *said))
    assert [row["sealed_secret"] for row in rows] == [None]
    assert ASKED["password"] not in everything
    assert ASKED["database_password"] not in everything


async def test_passwords_beneath_the_home_there_open_what_they_opened(
    world: World, hosts: RecordedForeignHosts
) -> None:
    asking = b"AuthType Basic\nAuthUserFile /home/ada/.htpasswd\nRequire valid-user\n"
    hosts.more = {f"{ROOT}/members/.htaccess": asking, "/home/ada/.htpasswd": b"ada:abNANd1rDfiNc\n"}
    await world.applied(await fetched(world))
    site = await world.site(MAIN)
    [path] = (await world.ada.get(f"/sites/{site['id']}/protected-paths")).json()
    [asked] = [order["passwords"] for order in hosts.orders]

    assert (site["status"], path["path"], path["logins"]) == ("active", "/members", ["ada"])
    assert [file.parent.name for file in world.home(site).rglob(".ht*")] == ["members"]
    assert asked["folders"] == (ROOT,)
    assert asked["named"].endswith(f"sh {ROOT}")


async def test_which_php_the_other_host_has_is_asked_and_the_site_gets_that_one(
    world: World, hosts: RecordedForeignHosts
) -> None:
    imported = await fetched(world)
    await world.applied(imported)
    site = await world.site(MAIN)

    assert [question["command"].split()[0] for question in hosts.orders[0]["asked"]] == ["php"]
    assert site["php"]["version"] == "7.4"


async def test_a_fetch_that_failed_says_why_and_forgets_what_opens_the_host(
    world: World, hosts: RecordedForeignHosts, panel_database: Database
) -> None:
    hosts.problem = "The other host rejects the credentials of the account."

    imported = await fetched(world)

    assert (imported["status"], imported["problem"]) == ("failed", hosts.problem)
    assert await panel_database.fetchval("SELECT sealed_secret FROM imports") is None


async def test_a_fetch_that_a_restart_interrupted_begins_anew(
    panel_database: Database, tmp_path: Path, hosts: RecordedForeignHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    server = replace(recorded_host(), accounts=FolderAccounts(tmp_path / "sites"), foreign_hosts=hosts)
    hosts.hangs = True
    async with world_of(panel_database, tmp_path, server, new=True) as world:
        answer = await world.ada.post("/imports/ssh", {**ASKED, "host_key": KEY.fingerprint})
        begun = answer.json()["begun"]
        with trio.fail_after(60):
            await hosts.asked.wait()
    hosts.hangs = False
    async with world_of(panel_database, tmp_path, server) as world:
        await world.panel.jobs_ended()
        imported = await world.shown(begun)

    assert imported["status"] == "ready", imported
    assert len(hosts.orders) == 2


def test_a_database_password_is_in_no_argument_of_the_other_host() -> None:
    remote = Remote(
        host="old.example",
        port=22,
        user="ada",
        host_key=KEY.text,
        domain=MAIN,
        folders=(ROOT,),
        database=DATABASE,
        database_user="ada_wp",
        database_host=None,
    )

    order = order_of(remote, Secrets(password="x", database_password='q"u\\o'), "93.184.216.34", 1)

    assert 'q"u' not in order["dump"]["command"]
    assert 'password="q\\"u\\\\o"' in order["dump"]["input"]
    assert order["command"] == f"env LC_ALL=C tar -C / -cf - .{ROOT}"
    assert json.loads(order["description"]["text"])["folders"] == [ROOT]
