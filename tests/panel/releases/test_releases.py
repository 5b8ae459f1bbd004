"""A newer release of the panel is believed by its signature, prepared beside what runs, and ordered to be tried."""

from __future__ import annotations

import gzip
import io
import json
import ssl
import tarfile
import threading
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from svc_actors.host.releases.layout import Outcome, Releases
from svc_actors.panel.releases.manifest import FILE, Manifest, ReleaseError, keys_of, signed, verified
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.sources import FolderSource, HttpsSource
from svc_actors.panel.releases.watch import ALERT, ReleaseWatch
from svc_actors.panel.releases.work import STEPS
from svc_actors.store import Database
from tests.support.certificates import self_signed
from tests.support.harness import Client
from tests.support.own_releases import MAKER, RUNNING, installed_release, release_tree
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tools.release_archive import make_release

NEXT_MAKER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (2, 3))


@dataclass
class World:
    """A panel of the release RUNNING, installed by its package, with the folder `offers` as its source of releases."""

    panel: PanelHarness
    root: Client
    folder: Path
    own: OwnRelease
    begun: list[str]

    @property
    def releases(self) -> Releases:
        return self.own.releases

    @property
    def offers(self) -> Path:
        return self.folder / "offers"

    def offer(self, version: str = "1.1.0", *, key: Ed25519PrivateKey = MAKER, check: str = "exit 0") -> Manifest:
        return make_release(release_tree(self.folder / f"tree-{version}", check=check), self.offers, version, key)

    def resign(self, manifest: Manifest, **changed: Any) -> None:
        (self.offers / FILE).write_text(signed(manifest.model_copy(update=changed), MAKER))

    async def show(self) -> dict[str, Any]:
        answer = await self.root.get("/updates/panel")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ordered(self, what: str = "install") -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.root.post(f"/updates/panel/{what}")
        assert answer.status_code == 200, answer.text
        return await self.ended(answer.json())

    async def ended(self, job: dict[str, Any]) -> dict[str, Any]:
        await self.panel.job_ended(job["id"])
        ended: dict[str, Any] = (await self.root.get(f"/jobs/{job['id']}")).json()
        return ended

    async def settled(self) -> dict[str, Any]:
        """What is shown once the core has looked at what became of the trial."""
        await ReleaseWatch(self.panel.database, self.own, offered=True).round()
        return await self.show()

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.panel.database.fetch("SELECT body FROM webhook_events WHERE event = 'update.installed'")
        return [json.loads(bytes(row["body"]))["data"] for row in rows]

    async def alerts(self) -> list[str]:
        rows = await self.panel.database.fetch("SELECT message FROM alerts WHERE key = $1 AND closed_at IS NULL", ALERT)
        return [row["message"] for row in rows]


@pytest.fixture
def own(tmp_path: Path) -> OwnRelease:
    (tmp_path / "offers").mkdir()
    return installed_release(tmp_path)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, own: OwnRelease) -> AsyncIterator[World]:
    async with opened(panel_database, tmp_path, own) as world:
        yield world


@asynccontextmanager
async def opened(
    database: Database, folder: Path, own: OwnRelease, email: str = "root@example.com"
) -> AsyncIterator[World]:
    begun: list[str] = []

    async def begin() -> None:
        begun.append("switch")

    mine = replace(own, begin_switch=begin)
    host = replace(recorded_host(), own_release=mine)
    async with open_panel(
        database,
        folder,
        host,
        update_source=str(folder / "offers"),
        loops=["jobs", "releases of the panel", "trials of releases"],
    ) as panel:
        yield World(panel, await panel.administrator(email), folder, mine, begun)


async def test_what_is_offered_is_shown_and_nothing_is_installed_by_looking(world: World) -> None:
    before = await world.show()
    manifest = world.offer()
    job = await world.ordered("look")
    after = await world.show()

    assert (before["running"]["version"], before["offered"], before["looked_at"]) == ("1.0.0", None, None)
    assert job["status"] == "succeeded"
    assert after["offered"]["version"] == "1.1.0"
    assert after["offered"]["problem"] is None
    assert after["offered"]["size"] == manifest.archive.size
    assert world.releases.names() == [RUNNING]


async def test_a_release_is_prepared_beside_what_runs_and_ordered_to_be_tried(world: World) -> None:
    manifest = world.offer()

    job = await world.ordered()
    shown = await world.settled()

    [name] = [each for each in world.releases.names() if each != RUNNING]
    taken = world.releases.take_order("this-boot")
    assert (job["status"], [step["name"] for step in job["steps"]]) == ("succeeded", list(STEPS))
    assert name == f"1.1.0-{manifest.archive.sha256[:12]}"
    assert taken is not None
    assert (taken.job, taken.release, taken.before) == (job["id"], name, RUNNING)
    assert world.begun == ["switch"]
    assert world.releases.current() == RUNNING
    assert (shown["last"]["state"], shown["job_id"]) == ("trial", job["id"])
    assert [each.name for each in world.releases.releases.iterdir() if ".part" in each.name] == []


async def test_a_release_that_is_kept_is_told_once_and_the_next_may_come(world: World) -> None:
    world.offer()
    job = await world.ordered()
    refused = await world.root.post("/updates/panel/install")
    ends(world, kept=True)

    shown = [await world.settled() for _ in range(2)][-1]

    assert refused.status_code == 409
    assert (shown["last"]["state"], shown["job_id"]) == ("kept", None)
    assert await world.told() == [
        {"job_id": job["id"], "packages": "svc-panel", "security": 0, "failed": 0, "silent_sites": 0}
    ]
    rows = await world.panel.database.fetch("SELECT details FROM audit WHERE operation = 'release.tried'")
    assert [row["details"]["kept"] for row in rows] == [True]


async def test_a_release_that_was_given_up_opens_an_alert_with_the_reason_until_one_is_kept(world: World) -> None:
    world.offer()
    await world.ordered()
    ends(world, kept=False, reason="its core does not start", silent=("a.example.com",))
    shown = await world.settled()
    alerts = await world.alerts()

    world.offer("1.2.0")
    await world.ordered()
    ends(world, kept=True)
    await world.settled()

    assert (shown["last"]["state"], shown["last"]["reason"]) == ("returned", "its core does not start")
    assert shown["last"]["silent_sites"] == ["a.example.com"]
    assert "its core does not start" in alerts[0]
    assert await world.alerts() == []
    assert len(await world.told()) == 1


def ends(world: World, *, kept: bool, reason: str | None = None, silent: tuple[str, ...] = ()) -> None:
    """As the program that switches ends a trial."""
    trial = world.releases.take_order("this-boot")
    assert trial is not None
    world.releases.write_outcome(Outcome(trial.job, trial.release, trial.before, kept, reason, silent))
    world.releases.end_trial()


def changed_archive(world: World, manifest: Manifest) -> None:
    archive = world.offers / manifest.archive.name
    content = bytearray(archive.read_bytes())
    content[-1] ^= 1
    archive.write_bytes(content)


def longer_archive(world: World, manifest: Manifest) -> None:
    with (world.offers / manifest.archive.name).open("ab") as file:
        file.write(b"more")


def missing_archive(world: World, manifest: Manifest) -> None:
    (world.offers / manifest.archive.name).unlink()


def by_a_stranger(world: World, manifest: Manifest) -> None:
    (world.offers / FILE).write_text(signed(manifest, STRANGER))


def changed_manifest(world: World, manifest: Manifest) -> None:
    mine = (world.offers / FILE).read_text().strip()
    other = signed(manifest.model_copy(update={"version": "9.9.9"}), STRANGER).strip()
    (world.offers / FILE).write_text(f"{other.partition('.')[0]}.{mine.partition('.')[2]}")


def no_manifest(world: World, manifest: Manifest) -> None:
    (world.offers / FILE).unlink()


def rubbish(world: World, manifest: Manifest) -> None:
    (world.offers / FILE).write_bytes(bytes(range(256)))


def archive_of(world: World, manifest: Manifest, *entries: tarfile.TarInfo) -> None:
    """Signed by the maker, with these entries in it besides."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb") as inner, tarfile.open(fileobj=inner, mode="w") as files:
        for entry in entries:
            files.addfile(entry, io.BytesIO(bytes(entry.size)))
    (world.offers / manifest.archive.name).write_bytes(packed.getvalue())
    digest, size = sha256(packed.getvalue()).hexdigest(), len(packed.getvalue())
    world.resign(manifest, archive=manifest.archive.model_copy(update={"sha256": digest, "size": size}))


def entry(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, "/etc/shadow" if kind == tarfile.SYMTYPE else ""
    return found


REFUSED: dict[str, tuple[Callable[[World, Manifest], None], str]] = {
    "the signature is of a stranger": (by_a_stranger, "signed by none of the keys"),
    "the manifest was changed": (changed_manifest, "signed by none of the keys"),
    "the manifest is rubbish": (rubbish, "no signed manifest"),
    "there is none": (no_manifest, "There is no release newer than 1.0.0"),
    "a byte of the archive is another": (changed_archive, "not the file that was signed"),
    "the archive is longer": (longer_archive, "longer than its manifest says"),
    "the archive is not there": (missing_archive, "cannot be fetched"),
    "it is older": (lambda world, found: world.resign(found, version="0.9.9"), "it is older than 1.0.0"),
    "it is what runs": (lambda world, found: world.resign(found, version="1.0.0"), "no release newer than 1.0.0"),
    "it follows a later one": (
        lambda world, found: world.resign(found, follows="1.0.5"),
        "it can follow 1.0.5",
    ),
    "it needs a newer package": (
        lambda world, found: world.resign(found, package="1.1.0"),
        "what the Debian package",
    ),
    "it is for another machine": (lambda world, found: world.resign(found, architecture="arm64"), "it is for arm64"),
    "it leads out": (lambda world, found: archive_of(world, found, entry("../../evil")), "leads out of it"),
    "it has a link": (
        lambda world, found: archive_of(world, found, entry("bin/svc", kind=tarfile.SYMTYPE)),
        "neither a file nor a folder",
    ),
    "it unpacks to more": (
        lambda world, found: archive_of(world, found, entry("bin/svc", size=1 << 20)),
        "more in it than its manifest says",
    ),
    "it has no program": (lambda world, found: archive_of(world, found, entry("README")), "no program bin/svc"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_may_not_take_the_place_of_what_runs_is_refused_and_leaves_nothing(world: World, case: str) -> None:
    spoil, reason = REFUSED[case]
    spoil(world, world.offer())

    job = await world.ordered()

    assert job["status"] == "failed"
    assert reason in job["error"]["message"]
    nothing_was_touched(world)
    assert not list(world.folder.rglob("evil"))


def nothing_was_touched(world: World) -> None:
    assert sorted(each.name for each in world.releases.releases.iterdir()) == [RUNNING]
    assert world.releases.current() == RUNNING
    assert not world.releases.ordered()
    assert world.begun == []


async def test_a_release_whose_own_check_fails_is_not_tried_and_says_why(world: World) -> None:
    world.offer(check="echo 'svc: The database was made by PostgreSQL 99.'; exit 1")

    job = await world.ordered()
    shown = await world.show()

    assert job["status"] == "failed"
    assert "made by PostgreSQL 99" in job["error"]["message"]
    assert (shown["last"]["state"], shown["job_id"]) == ("refused", None)
    assert "PostgreSQL 99" in shown["last"]["reason"]
    assert world.begun == []


async def test_without_room_for_it_nothing_is_fetched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("svc_actors.panel.releases.work.shutil.disk_usage", lambda _: usage(1 << 30, 1 << 30, 1 << 20))
    world.offer()

    job = await world.ordered()

    assert job["status"] == "failed"
    assert "has 1 MiB free" in job["error"]["message"]
    nothing_was_touched(world)


async def test_a_disk_that_fills_while_it_is_unpacked_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svc_actors.panel.releases.unpacking.shutil.copyfileobj", full)
    world.offer()

    job = await world.ordered()

    assert "No space left on device" in job["error"]["message"]
    nothing_was_touched(world)


async def test_where_the_program_that_switches_does_not_start_the_order_is_taken_back(
    panel_database: Database, tmp_path: Path, own: OwnRelease
) -> None:
    async def fail() -> None:
        raise ReleaseError("systemd does not answer")

    host = replace(recorded_host(), own_release=replace(own, begin_switch=fail))
    async with open_panel(
        panel_database,
        tmp_path,
        host,
        update_source=str(tmp_path / "offers"),
        loops=["jobs", "releases of the panel", "trials of releases"],
    ) as panel:
        world = World(panel, await panel.administrator(), tmp_path, own, [])
        world.offer()
        job = await world.ordered()
        shown = await world.settled()

    assert job["error"]["message"] == "It is not tried: systemd does not answer."
    assert not own.releases.ordered()
    assert (shown["last"]["state"], shown["job_id"]) == ("refused", None)


async def test_it_waits_for_other_jobs_and_is_not_tried_where_they_do_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.releases.work._JOBS_SECONDS", 0.2)
    monkeypatch.setattr("svc_actors.panel.releases.work._PAUSE", 0.05)
    await world.panel.database.execute(
        """INSERT INTO jobs (kind, title, class, status, parameters, started_at)
           VALUES ('x', 'x', 'backups', 'running', '{}', now())"""
    )
    world.offer()

    job = await world.ordered()

    assert "Other jobs were still running" in job["error"]["message"]
    assert world.begun == []
    assert not world.releases.ordered()


async def test_an_order_that_a_core_left_behind_is_not_taken_up_by_the_next(
    panel_database: Database, tmp_path: Path, own: OwnRelease
) -> None:
    async with opened(panel_database, tmp_path, own) as world:
        world.offer()
        await world.ordered()
        assert world.releases.ordered()
    async with opened(panel_database, tmp_path, own, "other@example.com") as world:
        shown = await world.settled()

    assert not own.releases.ordered()
    assert (shown["last"]["state"], shown["job_id"]) == ("returned", None)
    assert "did not take up the order" in shown["last"]["reason"]


async def test_while_updates_are_off_no_release_is_looked_for_or_installed(world: World) -> None:
    world.offer()
    await world.root.patch("/updates", {"mode": "off"})
    refused = [await world.root.post(f"/updates/panel/{order}") for order in ("look", "install")]
    await ReleaseWatch(world.panel.database, world.own, offered=True).look_daily()

    assert [answer.status_code for answer in refused] == [409, 409]
    assert await world.panel.database.fetchval("SELECT count(*) FROM jobs") == 0


async def test_where_a_source_is_named_it_is_looked_at_each_day_and_nothing_is_installed(world: World) -> None:
    world.offer()
    unnamed = ReleaseWatch(world.panel.database, world.own, offered=False)
    watch = ReleaseWatch(world.panel.database, world.own, offered=True)
    await unnamed.look_daily()
    none = await world.panel.database.fetchval("SELECT count(*) FROM jobs")
    for _ in range(2):
        await watch.look_daily()
    await world.panel.jobs_ended()
    await watch.look_daily()

    rows = await world.panel.database.fetch("SELECT kind FROM jobs")
    assert none == 0
    assert [row["kind"] for row in rows] == ["release.look"]
    assert (await world.show())["offered"]["version"] == "1.1.0"


async def test_a_daily_look_that_fails_is_shown_and_fails_no_job(world: World) -> None:
    (world.offers / FILE).write_text("rubbish")
    await ReleaseWatch(world.panel.database, world.own, offered=True).look_daily()
    [job] = (await world.root.get("/jobs")).json()["items"]
    ended = await world.ended(job)

    assert ended["status"] == "succeeded"
    assert "signed by none" in (await world.show())["look_error"]


async def test_what_is_put_into_the_folder_for_it_by_hand_is_installed_as_well(world: World) -> None:
    make_release(release_tree(world.folder / "by-hand"), world.releases.incoming, "1.3.0", MAKER)
    world.offer("1.2.0")

    job = await world.ordered()

    assert job["status"] == "succeeded"
    assert [name.partition("-")[0] for name in world.releases.names()] == ["1.0.0", "1.3.0"]


async def test_a_panel_that_its_package_did_not_install_has_no_other_release(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(
        panel_database, tmp_path, loops=["jobs", "releases of the panel", "trials of releases"]
    ) as panel:
        root = await panel.administrator()
        shown = (await root.get("/updates/panel")).json()
        refused = await root.post("/updates/panel/install")

    assert shown["running"] is None
    assert refused.status_code == 409


async def test_a_build_without_keys_trusts_nobody(world: World) -> None:
    manifest = world.offer()

    assert keys_of(world.folder) == ()
    with pytest.raises(ReleaseError, match="signed by none"):
        verified(signed(manifest, MAKER), ())


async def test_a_key_is_exchanged_by_a_release_that_trusts_both(world: World, tmp_path: Path) -> None:
    manifest = world.offer()
    both = b"".join(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in (MAKER, NEXT_MAKER)
    )
    (tmp_path / "release-keys.pem").write_bytes(both)

    for key in (MAKER, NEXT_MAKER):
        assert verified(signed(manifest, key), keys_of(tmp_path)) == manifest
    with pytest.raises(ReleaseError):
        verified(signed(manifest, STRANGER), keys_of(tmp_path))


async def test_they_are_administrators_alone(world: World) -> None:
    ada = await world.panel.customer()
    answers = [await ada.get("/updates/panel"), await ada.post("/updates/panel/install")]

    assert {answer.status_code for answer in answers} == {403}


@contextmanager
def https_server(folder: Path, certificates: Path) -> Iterator[HttpsSource]:
    certificates.mkdir()
    files = self_signed(certificates)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Not of interest."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        yield HttpsSource(f"https://localhost:{server.server_address[1]}", trusting)
        server.shutdown()


async def test_releases_are_fetched_by_https_from_a_server_that_this_system_trusts(
    world: World, tmp_path: Path
) -> None:
    manifest = world.offer()
    to = tmp_path / "fetched"
    with https_server(world.offers, tmp_path / "tls") as source:
        line = await source.line()
        await source.fetch(manifest.archive, to)
        (world.offers / FILE).unlink()
        none = await source.line()
        with pytest.raises(ReleaseError, match="does not give"):
            await replace(source, context=ssl.create_default_context()).line()

    assert verified(line or "", world.own.keys) == manifest
    assert to.read_bytes() == (world.offers / manifest.archive.name).read_bytes()
    assert none is None


async def test_a_source_that_cannot_be_reached_is_said_and_what_was_found_before_stays(world: World) -> None:
    world.offer()
    await world.ordered("look")
    (world.offers / FILE).unlink()
    (world.offers / FILE).mkdir()
    job = await world.ordered("look")
    shown = await world.show()

    assert job["status"] == "failed"
    assert "cannot be read" in shown["look_error"]
    assert shown["offered"]["version"] == "1.1.0"
    assert await FolderSource(world.folder / "nowhere").line() is None
