"""A machine's store at a target elsewhere, by a real OpenSSH server and a server of S3: one that is away, full, wrong
or has lost data is told in words, nothing that it has is lost, and the next backup goes on with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from svc_actors.remote_targets import new_key_pair
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import store as stores
from svc_nodeagent.hypervisor.backups.store import MachineStore, store_at
from svc_nodeagent.protocol import BackupPlace, BucketPlace, FailureCode, SftpPlace
from tests.nodeagent.hypervisor.test_backup_store import DISK, MIB, content_of, keep
from tests.support.processes import command_lines
from tests.support.s3 import BUCKET, S3, shared_s3
from tests.support.small_disk import small_disk
from tests.support.sshd import Sshd, open_sshd

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@dataclass
class Target:
    place: BackupPlace
    server: Sshd | S3

    def store(self, vm_id: UUID, **changes: object) -> MachineStore:
        return store_at(Path("/nowhere"), vm_id, "key", self.place.model_copy(update=changes))


@asynccontextmanager
async def sftp_target(folder: Path, path: Path) -> AsyncIterator[Target]:
    private, public = new_key_pair("svc-machine-backups")
    async with open_sshd(folder) as sshd:
        sshd.let_in(public)
        await sshd.start()
        place = SftpPlace(
            name="nas",
            host="127.0.0.1",
            port=sshd.port,
            user="root",
            path=str(path),
            host_key=sshd.host_key,
            private_key=private,
        )
        yield Target(place, sshd)


async def bucket_target(s3: S3) -> Target:
    """An empty one."""
    await s3.start_anew()
    place = BucketPlace(
        name="bucket",
        endpoint=s3.url,
        bucket=BUCKET,
        prefix="machines",
        region="us-east-1",
        access_key=s3.access_key,
        secret_key=s3.secret_key,
    )
    return Target(place, s3)


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with shared_s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture(params=["sftp", "s3"])
async def target(request: pytest.FixtureRequest, s3_server: S3, tmp_path: Path) -> AsyncIterator[Target]:
    if request.param == "s3":
        yield await bucket_target(s3_server)
    else:
        async with sftp_target(tmp_path / "sshd", tmp_path / "kept") as target:
            yield target


async def refused(store: MachineStore) -> HostError:
    with pytest.raises(HostError) as error:
        await store.prepare()
    assert error.value.code is FailureCode.TARGET
    return error.value


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only once restic has begun to read: a busy machine may take seconds to start it, and a writer whose patience
    ended before the first byte would not meet the target at all."""
    monkeypatch.setattr(stores, "STALLED_SECONDS", 3.0)
    monkeypatch.setattr(stores, "PRUNE_SECONDS", 3.0)


async def _keep_while_it_goes_away(store: MachineStore, server: Sshd | S3, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.writer(uuid4(), DISK) as sink:
        await sink.send_all(os.urandom(MIB))
        _impatient(monkeypatch)
        if isinstance(server, S3):
            server.hang()
        else:
            server.kill()
        for _ in range(64):
            await sink.send_all(os.urandom(MIB))


async def _keep_too_much(store: MachineStore, mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.writer(uuid4(), DISK) as sink:
        await sink.send_all(os.urandom(MIB))
        _impatient(monkeypatch)
        await sink.send_all(os.urandom(mib * MIB))


async def test_copies_are_kept_given_back_and_removed(target: Target) -> None:
    vm_id = uuid4()
    store, content = target.store(vm_id), os.urandom(3 * MIB)
    with pytest.raises(HostError) as none:
        await store.listing()
    assert none.value.code is FailureCode.NOT_FOUND
    await store.prepare()
    first = await keep(store, content)
    second = await keep(store, content + b"more")
    assert await content_of(store, first) == content
    # Without the key of the store nobody reads it
    with pytest.raises(HostError, match="wrong password"):
        await store_at(Path("/nowhere"), vm_id, "another", target.place).listing()

    await store.forget([each for each in (await store.listing()).snapshots if each.copy_id == first])
    assert await store.prune()
    assert await content_of(store, second) == content + b"more"
    await store.remove()
    assert not (await store.listing()).snapshots
    await target.store(uuid4()).remove()


async def test_what_opens_a_target_is_on_no_disk_and_no_command_line(target: Target, tmp_path: Path) -> None:
    secret = target.place.private_key if isinstance(target.place, SftpPlace) else target.place.secret_key
    vm_id = uuid4()
    store = target.store(vm_id)
    await store.prepare()
    async with store.writer(uuid4(), DISK) as sink:
        # More than a pipe holds: restic has read of it, so it is what runs there.
        await sink.send_all(bytes(MIB))
        commands = command_lines().values()
        restic = [each for each in commands if str(vm_id).encode() in each]
        assert restic
        assert not [each for each in commands if secret.encode() in each]
    assert secret not in repr(target.place)


async def test_a_target_that_is_away_is_named_and_goes_on_when_it_is_back(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content = target.store(uuid4()), os.urandom(3 * MIB)
    await store.prepare()
    kept = await keep(store, content)

    # While a copy is under way
    with pytest.raises(HostError) as cut:
        await _keep_while_it_goes_away(store, target.server, monkeypatch)
    assert cut.value.code is FailureCode.TARGET
    monkeypatch.undo()
    if isinstance(target.server, S3):
        target.server.go_on()
    else:
        # And where nobody answers at all
        away = await refused(store)
        assert f"nas (sftp://127.0.0.1:{target.server.port}" in away.message
        assert "does not answer" in away.message
        assert "were not changed" in str(away.hint)
        await target.server.start()

    await store.prepare()
    again = await keep(store, content + b"more")
    assert await store.prune()
    assert await content_of(store, kept) == content
    assert await content_of(store, again) == content + b"more"


async def test_data_that_the_target_has_lost_is_noticed_and_brought_again(target: Target, tmp_path: Path) -> None:
    vm_id = uuid4()
    store, content = target.store(vm_id), os.urandom(8 * MIB)
    await store.prepare()
    first = await keep(store, content)
    if isinstance(target.server, S3):
        await target.server.lose_largest(f"machines/{vm_id}/data/")
    else:
        max((tmp_path / "kept" / str(vm_id) / "data").glob("*/*"), key=lambda path: path.stat().st_size).unlink()
    assert not await store.prune()
    await store.strike_off_lost()
    second = await keep(store, content)
    assert await content_of(store, second) == content
    # What the disk still had makes the earlier copy whole as well
    assert await content_of(store, first) == content
    assert await store.prune()


async def test_a_full_target_by_sftp_is_named_and_takes_copies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "kept", 64) as disk:
        async with sftp_target(tmp_path / "sshd", disk.folder) as target:
            store, content = target.store(uuid4()), os.urandom(4 * MIB)
            await store.prepare()
            kept = await keep(store, content)
            with pytest.raises(HostError, match=r"nas .* accepts no data: it is full") as full:
                await _keep_too_much(store, 96, monkeypatch)
            monkeypatch.undo()
            assert full.value.code is FailureCode.TARGET
            assert await content_of(store, kept) == content
            await store.prepare()
            assert await store.prune()
            again = await keep(store, content + os.urandom(8 * MIB))
            assert len(await content_of(store, again)) == 12 * MIB


async def test_what_an_upload_that_was_cut_short_has_left_frees_a_full_target_by_sftp(tmp_path: Path) -> None:
    """restic removes what it could not write, unless it is killed then, and no command of its own removes it later.
    Until then not even its lock has room, without which nothing is pruned."""
    with small_disk(tmp_path / "kept", 64) as disk:
        async with sftp_target(tmp_path / "sshd", disk.folder) as target:
            vm_id = uuid4()
            store, content = target.store(vm_id), os.urandom(4 * MIB)
            await store.prepare()
            kept = await keep(store, content)
            [data] = disk.folder.glob(f"{vm_id}/data")
            left = next(data.iterdir()) / f"{'5' * 64}-restic-temp-{'a' * 32}"
            disk.fill(leave=16 * MIB)
            with left.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
                    file.flush()
            with pytest.raises(HostError, match="full"):
                await keep(store, os.urandom(MIB))

            await store.prepare()
            assert await store.prune()
            again = await keep(store, content + os.urandom(4 * MIB))
            assert not left.exists()
            assert await content_of(store, kept) == content
            assert len(await content_of(store, again)) == 8 * MIB


async def test_of_a_target_by_sftp_only_unfinished_files_of_that_store_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / 'kept "here" [1] and \\ there'
    folder.mkdir()
    async with sftp_target(tmp_path / "sshd", folder) as target:
        vm_id, other = uuid4(), folder / str(uuid4())
        store = target.store(vm_id)
        await store.prepare()
        await keep(store, os.urandom(MIB))
        name = f"{'5' * 64}-restic-temp-{'a' * 32}"
        unfinished = [next((folder / str(vm_id)).glob(each)) / name for each in ("data/*", "index", "locks")]
        (other / "index").mkdir(parents=True)
        stays = [other / "index" / name, folder / name]
        for each in (*unfinished, *stays):
            each.write_bytes(b"unfinished")
        whole = {path for path in (folder / str(vm_id)).rglob("*") if path.is_file()} - set(unfinished)

        await store.prune()
        assert [each for each in unfinished if each.exists()] == []
        assert [each for each in stays if not each.exists()] == []
        assert {path for path in (folder / str(vm_id)).rglob("*") if path.is_file()} == whole


async def test_a_server_that_shows_another_host_key_or_refuses_the_key_is_told_nothing(tmp_path: Path) -> None:
    private, public = new_key_pair("svc-machine-backups")
    async with sftp_target(tmp_path / "sshd", tmp_path / "kept") as target:
        other = await refused(target.store(uuid4(), host_key=" ".join(public.split()[:2])))
        assert "presents another host key than the confirmed one" in other.message
        unknown = await refused(target.store(uuid4(), private_key=private))
        assert "does not let the target's key in" in unknown.message


async def test_a_bucket_that_is_missing_or_closed_is_told_in_words(s3_server: S3) -> None:
    target = await bucket_target(s3_server)
    missing = await refused(target.store(uuid4(), bucket="another"))
    assert "has no such bucket" in missing.message
    assert await s3_server.buckets() == [BUCKET]
    assert "does not know the access key" in (await refused(target.store(uuid4(), access_key="AKIAOTHER"))).message
    wrong = await refused(target.store(uuid4(), secret_key="another"))
    assert "the secret key is not the one of the access key" in wrong.message
