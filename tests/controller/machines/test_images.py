"""Images: digests as publishers say them, files that appear whole, pulls that are noted."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio
from pydantic import ValidationError

from svc.registry.principal import Role
from svc_actors.controller.images import images
from svc_actors.controller.images.catalogue import CATALOGUE, Published, ensure_catalogue
from svc_actors.controller.images.checksums import ChecksumFormat, NoDigest, find_digest
from svc_actors.controller.images.files import ImageFiles, ImageSources
from svc_actors.controller.images.images import ImageWork
from svc_actors.controller.tasks.runner import Task, TaskRunner, TaskStatus
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent import outbound
from svc_nodeagent.protocol import ControllerSource, ImagePull
from tests.support.collisions import collide_once
from tests.support.machine_api import Api, person
from tests.support.machine_service import DIGEST, FakeGateway, make_fleet, open_service

HEX256, HEX512 = "ab" * 32, "cd" * 64


@pytest.mark.parametrize(
    ("form", "algorithm", "text", "digest"),
    [
        (ChecksumFormat.GNU, "sha512", f"{HEX512}  disk.qcow2\n{'00' * 64}  other.qcow2\n", HEX512),
        (ChecksumFormat.GNU, "sha256", f"{HEX256} *disk.qcow2\r\n", HEX256),
        (ChecksumFormat.GNU, "sha256", f"{HEX256.upper()}  ./disk.qcow2", HEX256),
        (ChecksumFormat.BSD, "sha256", f"# disk.qcow2: 1 bytes\nSHA256 (disk.qcow2) = {HEX256}\n", HEX256),
        (
            ChecksumFormat.BSD,
            "sha256",
            f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nSHA256 (disk.qcow2) = {HEX256}\n-----BEGIN",
            HEX256,
        ),
        (ChecksumFormat.GNU, "sha256", f"\ufeff{HEX256}  disk.qcow2\n", HEX256),
        (ChecksumFormat.BARE, "sha512", f"\ufeff{HEX512}\n", HEX512),
        (ChecksumFormat.BARE, "sha512", f"{HEX512}\n", HEX512),
        (ChecksumFormat.BARE, "sha512", f"{HEX512}  whatever.qcow2\n", HEX512),
    ],
)
def test_each_publishers_format_is_read(form: ChecksumFormat, algorithm: str, text: str, digest: str) -> None:
    assert find_digest(text, "disk.qcow2", algorithm, form) == digest


@pytest.mark.parametrize(
    ("form", "algorithm", "text"),
    [
        (ChecksumFormat.GNU, "sha256", ""),
        (ChecksumFormat.GNU, "sha256", f"{HEX256}  not-disk.qcow2"),
        (ChecksumFormat.GNU, "sha512", f"{HEX256}  disk.qcow2"),
        (ChecksumFormat.GNU, "sha256", f"{HEX256}  disk.qcow2\n{'00' * 32}  disk.qcow2"),
        (ChecksumFormat.BSD, "sha256", f"SHA512 (disk.qcow2) = {HEX256}"),
        (ChecksumFormat.BSD, "sha256", f"MD5 (disk.qcow2) = {HEX256}"),
        (ChecksumFormat.BARE, "sha512", "<html>404</html>"),
    ],
)
def test_what_is_no_digest_of_the_file_is_not_taken_for_one(form: ChecksumFormat, algorithm: str, text: str) -> None:
    with pytest.raises(NoDigest):
        find_digest(text, "disk.qcow2", algorithm, form)


def test_the_catalogue_has_the_distributions_and_reads_only_over_tls() -> None:
    assert {image.distribution for image in CATALOGUE} == {
        "debian",
        "ubuntu",
        "almalinux",
        "rocky",
        "fedora",
        "alpine",
    }
    assert len({image.slug for image in CATALOGUE}) == len(CATALOGUE)
    assert all(url.startswith("https://") for image in CATALOGUE for url in (image.url, image.checksum_url))


PUBLISHER = "https://publisher.example"


def publisher(files: Mapping[str, str], **headers: str) -> Callable[[], httpx.AsyncClient]:
    """Opens the client of a refresh, with a publisher in the network's place that has these files."""

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        if host != "publisher.example":
            raise OSError("no such name")
        return ["93.184.215.14"]

    def answer(request: httpx.Request) -> httpx.Response:
        body = files.get(request.url.path)
        if body is None:
            return httpx.Response(404)
        if body.startswith("http"):
            return httpx.Response(302, headers={"Location": body})
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body.encode("latin-1")))

    transport = httpx.MockTransport(answer)
    return lambda: outbound.client(timeout=5, https_only=True, resolve=resolve, transport=transport)


def published(slug: str, url: str, checksum: str) -> Published:
    return Published(
        slug=slug,
        name=slug,
        distribution="debian",
        release="1",
        login_user="debian",
        url=f"{url}/{slug}.qcow2",
        checksum_url=f"{url}/{checksum}",
        checksum_format=ChecksumFormat.GNU,
        algorithm="sha256",
    )


@asynccontextmanager
async def refreshed(
    database: Database, catalogue: tuple[Published, ...], open_client: Callable[[], httpx.AsyncClient]
) -> AsyncIterator[Task]:
    """The task of a refresh that has ended; every digest was known before."""
    await ensure_catalogue(database, catalogue)
    await database.execute("UPDATE images SET digest = $1", DIGEST)
    sources = ImageSources(database, lambda *_: "token")

    def prepare(tasks: TaskRunner) -> None:
        ImageWork(database, sources, catalogue=catalogue, open_client=open_client).install(tasks)

    async with open_service(database, FakeGateway(), prepare=prepare) as service:
        administrator = Api(service, await person(database, Role.ADMINISTRATOR))
        yield await service.ended((await administrator("image.refresh")).id)


async def test_a_refresh_takes_what_it_can_read_and_keeps_what_it_cannot(database: Database) -> None:
    catalogue = (
        published("good", PUBLISHER, "SUMS"),
        published("missing", PUBLISHER, "NOT-THERE"),
        published("silent", PUBLISHER, "EMPTY"),
        published("unreachable", "https://nowhere.example", "SUMS"),
    )
    open_client = publisher({"/SUMS": f"{HEX256}  good.qcow2\n", "/EMPTY": "nothing"})
    async with refreshed(database, catalogue, open_client) as ended:
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, ErrorCode.UNAVAILABLE)
        assert ended.error_message == "3 of 4 publishers could not be read: missing, silent, unreachable."
        assert ended.message == f"{ended.error_message} The known digests are kept."
        digests = {
            row["slug"]: row["digest"]
            for row in await database.fetch("SELECT slug, digest FROM images WHERE kind <> 'empty'")
        }
        assert digests == {"good": HEX256, "missing": DIGEST, "silent": DIGEST, "unreachable": DIGEST}
        log = await database.fetch("SELECT level, message FROM task_events WHERE message LIKE 'missing:%'")
        assert [row["level"] for row in log] == ["warning"]
        assert "404" in log[0]["message"]


async def test_a_refresh_that_reads_every_publisher_succeeds(database: Database) -> None:
    catalogue = (published("good", PUBLISHER, "SUMS"),)
    open_client = publisher({"/SUMS": f"{HEX256}  good.qcow2\n"})
    async with refreshed(database, catalogue, open_client) as ended:
        assert ended.status is TaskStatus.SUCCEEDED


async def test_a_refresh_that_meets_another_change_reads_every_publisher(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = collide_once(monkeypatch, images, "announce_image")
    open_client = publisher({"/SUMS": f"{HEX256}  good.qcow2\n"})
    async with refreshed(database, (published("good", PUBLISHER, "SUMS"),), open_client) as ended:
        assert (ended.status, len(calls)) == (TaskStatus.SUCCEEDED, 2)
        assert await database.fetchval("SELECT digest FROM images WHERE slug = 'good'") == HEX256


async def test_a_refresh_unpacks_nothing_and_believes_nothing_that_came_without_tls(database: Database) -> None:
    sums = f"{HEX256}  good.qcow2\n"
    bomb = gzip.compress(gzip.compress(bytes(64 * 2**20) + sums.encode())).decode("latin-1")
    catalogue = (published("good", PUBLISHER, "SUMS"),)

    for files, headers in (
        ({"/SUMS": bomb}, {"Content-Encoding": "gzip, gzip"}),
        ({"/SUMS": "http://publisher.example/PLAIN", "/PLAIN": sums}, {}),
        ({"/SUMS": "https://127.0.0.1/PLAIN", "/PLAIN": sums}, {}),
    ):
        async with refreshed(database, catalogue, publisher(files, **headers)) as ended:
            assert ended.status is TaskStatus.FAILED
        assert await database.fetchval("SELECT digest FROM images WHERE slug = 'good'") == DIGEST


async def test_the_catalogue_is_repeatable_and_keeps_what_the_operator_decided(database: Database) -> None:
    await ensure_catalogue(database)
    await database.execute("UPDATE images SET enabled = false, digest = $1 WHERE slug = 'debian-12'", HEX512)
    await ensure_catalogue(database)
    row = await database.fetchrow("SELECT enabled, digest FROM images WHERE slug = 'debian-12'")
    assert row is not None
    assert tuple(row) == (False, HEX512)
    assert await database.fetchval("SELECT count(*) FROM images WHERE kind <> 'empty'") == len(CATALOGUE)


async def test_a_file_that_has_moved_forgets_its_digest(database: Database) -> None:
    await ensure_catalogue(database, (published("good", "https://old.example", "SUMS"),))
    await database.execute("UPDATE images SET digest = $1", DIGEST)
    await ensure_catalogue(database, (published("good", "https://new.example", "SUMS"),))
    assert await database.fetchval("SELECT digest FROM images WHERE kind <> 'empty'") is None


@asynccontextmanager
async def offered(database: Database, data_dir: Path) -> AsyncIterator[tuple[Api, Api, Any]]:
    world = await make_fleet(database)

    def prepare(tasks: TaskRunner) -> None:
        ImageWork(database, ImageSources(database, lambda node, key: f"{node}/{key}")).install(tasks)

    async with open_service(database, FakeGateway(), prepare=prepare) as service:
        administrator = Api(service, await person(database, Role.ADMINISTRATOR), data_dir)
        yield administrator, Api(service, await person(database, Role.CUSTOMER)), (service, world)


CUSTOM = {"slug": "mine", "name": "Mine", "distribution": "debian", "release": "12", "login_user": "debian"}


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await trio.lowlevel.checkpoint()
        yield part


async def test_an_uploaded_file_is_kept_whole_with_its_digest(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, _, _):
        image = await administrator("image.create", **CUSTOM, source="file")
        assert image.digest is None
        sent = await administrator.upload("image.upload", chunks(b"first ", b"second"), id=image.id)
        assert (sent.digest, sent.size_bytes) == (hashlib.sha256(b"first second").hexdigest(), 12)
        path = ImageFiles(tmp_path).find(str(image.id))
        assert path is not None
        assert path.read_bytes() == b"first second"


async def test_an_upload_that_breaks_off_leaves_the_file_that_was_there(database: Database, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half of"
        raise trio.BrokenResourceError

    async with offered(database, tmp_path) as (administrator, _, _):
        image = await administrator("image.create", **CUSTOM, source="file")
        before = await administrator.upload("image.upload", chunks(b"whole"), id=image.id)
        with pytest.raises(trio.BrokenResourceError):
            await administrator.upload("image.upload", broken(), id=image.id)
        assert [path.read_bytes() for path in (tmp_path / "images").iterdir()] == [b"whole"]
        [now] = [each for each in await administrator("image.list") if each.id == image.id]
        assert now.digest == before.digest


def test_a_file_is_found_by_an_images_id_and_by_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.key").write_text("secret")
    files = ImageFiles(tmp_path)
    assert files.find("../secret.key") is None
    assert files.find(str(uuid4())) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "url"},
        {"source": "url", "url": "https://example.com/x.qcow2"},
        {"source": "file", "digest": DIGEST},
        {"source": "url", "url": "https://example.com/x.qcow2", "digest": "ab" * 64},
        {"source": "url", "url": "file:///etc/passwd", "digest": DIGEST},
        {"source": "file", "login_user": "root; rm"},
    ],
)
async def test_an_image_that_makes_no_sense_is_refused(
    database: Database, tmp_path: Path, changes: dict[str, object]
) -> None:
    async with offered(database, tmp_path) as (administrator, _, _):
        with pytest.raises(ValidationError):
            await administrator("image.create", **(CUSTOM | changes))


async def test_a_digest_may_be_in_capitals(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, _, _):
        url = "https://example.com/x.qcow2"
        image = await administrator("image.create", **CUSTOM, source="url", url=url, digest=DIGEST.upper())
        assert image.digest == DIGEST.lower()


async def test_a_slug_is_taken_once(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, _, _):
        await administrator("image.create", **CUSTOM, source="file")
        with pytest.raises(ServiceError) as refused:
            await administrator("image.create", **CUSTOM, source="file")
        assert refused.value.code is ErrorCode.CONFLICT


async def test_customers_read_enabled_images_and_write_none(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, customer, (_, world)):
        assert [image.slug for image in await customer("image.list")] == ["demo"]
        await administrator("image.update", id=world.image_id, enabled=False)
        assert await customer("image.list") == []
        assert [image.slug for image in await administrator("image.list")] == ["demo"]
        for name, values in (
            ("image.create", CUSTOM | {"source": "file"}),
            ("image.update", {"id": world.image_id, "enabled": True}),
            ("image.refresh", {}),
            ("image.pull", {"id": world.image_id, "node_id": world.node_id}),
        ):
            with pytest.raises(ServiceError) as refused:
                await customer(name, **values)
            assert refused.value.code is ErrorCode.FORBIDDEN


async def test_a_pull_brings_the_image_and_notes_it(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, _, (service, world)):
        task = await administrator("image.pull", id=world.image_id, node_id=world.node_id)
        assert (await service.ended(task.id)).status is TaskStatus.SUCCEEDED
        [asked] = service.gateway.asked
        assert isinstance(asked, ImagePull)
        assert asked.image.source == ControllerSource(token=f"{world.node_id}/{world.image_id}")
        assert asked.image.digest == DIGEST
        row = await database.fetchrow("SELECT node_id, digest FROM node_images")
        assert row is not None
        assert tuple(row) == (world.node_id, DIGEST)


async def test_a_machine_on_a_node_that_has_the_image_fetches_nothing(database: Database, tmp_path: Path) -> None:
    async with offered(database, tmp_path) as (administrator, _, (service, world)):
        pulled = await administrator("image.pull", id=world.image_id, node_id=world.node_id)
        await service.ended(pulled.id)
        created = await service.create(world.machine())
        await service.ended(created.task)
        assert [operation.op for operation in service.gateway.asked] == ["image.pull", "vm.create"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("UPDATE images SET digest = NULL", ErrorCode.NOT_READY),
        ("UPDATE nodes SET state = 'offline'", ErrorCode.UNAVAILABLE),
        ("UPDATE nodes SET deleted_at = now()", ErrorCode.NOT_FOUND),
    ],
)
async def test_a_pull_that_cannot_be_is_refused(
    database: Database, tmp_path: Path, change: str, code: ErrorCode
) -> None:
    async with offered(database, tmp_path) as (administrator, _, (_, world)):
        await database.execute(change)
        with pytest.raises(ServiceError) as refused:
            await administrator("image.pull", id=world.image_id, node_id=world.node_id)
        assert refused.value.code is code
