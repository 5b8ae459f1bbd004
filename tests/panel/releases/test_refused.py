"""A release that its maker did not sign, or that cannot follow what runs, is refused and leaves nothing."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections import namedtuple
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from svc_actors.panel.releases.manifest import FILE, Manifest, ReleaseError, keys_of, signed, verified
from tests.panel.releases.world import World
from tests.support.own_releases import MAKER, RUNNING

NEXT_MAKER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (2, 3))


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
    "the signature is of a stranger": (by_a_stranger, "not signed by a key"),
    "the manifest was changed": (changed_manifest, "not signed by a key"),
    "the manifest is rubbish": (rubbish, "not a signed manifest"),
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
        "it needs the Debian package",
    ),
    "it is for another machine": (lambda world, found: world.resign(found, architecture="arm64"), "it is for arm64"),
    "it leads out": (lambda world, found: archive_of(world, found, entry("../../evil")), "leads out of it"),
    "it has a link": (
        lambda world, found: archive_of(world, found, entry("bin/svc", kind=tarfile.SYMTYPE)),
        "neither a file nor a folder",
    ),
    "it unpacks to more": (
        lambda world, found: archive_of(world, found, entry("bin/svc", size=1 << 20)),
        "larger than its manifest says",
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

    monkeypatch.setattr("svc_actors.panel.releases.work.shutil.copyfileobj", full)
    world.offer()

    job = await world.ordered()

    assert "No space left on device" in job["error"]["message"]
    nothing_was_touched(world)


def nothing_was_touched(world: World) -> None:
    assert sorted(each.name for each in world.releases.releases.iterdir()) == [RUNNING]
    assert world.releases.current() == RUNNING
    assert not world.releases.ordered()
    assert world.begun == []


async def test_a_build_without_keys_trusts_nobody(world: World) -> None:
    manifest = world.offer()

    assert keys_of(world.folder) == ()
    with pytest.raises(ReleaseError, match="not signed by a key"):
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
