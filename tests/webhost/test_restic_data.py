"""A restic repository whose data was overwritten, cut or lost on its disk is recognised by the part that has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from svc_actors.panel.recovery.remote import Programs
from svc_common.errors import ServiceError
from svc_webhost.restic import DamagedDataError, Repository, SystemRestic
from tests.support.cheap_keys import make_key_cheap

PARTS = 4


def overwritten(pack: Path) -> None:
    with pack.open("r+b") as file:
        file.seek(1000)
        file.write(b"XXXXXXXX")


def cut(pack: Path) -> None:
    os.truncate(pack, pack.stat().st_size - 8)


def lost(pack: Path) -> None:
    pack.unlink()


async def test_whole_data_passes_in_every_part_and_leaves_no_lock(tmp_path: Path) -> None:
    repository, _ = await kept(tmp_path)

    for part in range(1, PARTS + 1):
        await SystemRestic().read_data(Programs(), repository, part, PARTS, tmp_path / "cache")
        await SystemRestic().read_data(Programs(), repository, part, PARTS, None)

    assert list(Path(repository.location, "locks").iterdir()) == []


@pytest.mark.parametrize("damage", [overwritten, cut])
async def test_damage_is_named_and_is_in_one_part(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    repository, pack = await kept(tmp_path)
    pack.chmod(0o600)
    damage(pack)
    found = {}

    for part in range(1, PARTS + 1):
        try:
            await SystemRestic().read_data(Programs(), repository, part, PARTS, None)
        except DamagedDataError as error:
            found[part] = error.message

    assert found[int(pack.name[:2], 16) % PARTS + 1]
    assert all(pack.name[:8] in message for message in found.values())
    assert len(found) == (1 if damage is overwritten else PARTS)  # A wrong length is seen without reading.


async def test_a_repository_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    repository, _ = await kept(tmp_path)
    Path(repository.location).rename(tmp_path / "elsewhere")

    with pytest.raises(ServiceError) as refused:
        await SystemRestic().read_data(Programs(), repository, 1, PARTS, None)

    assert not isinstance(refused.value, DamagedDataError)


async def kept(folder: Path) -> tuple[Repository, Path]:
    """A repository with a file, and its largest pack."""
    (password := folder / "password").write_text("secret")
    (file := folder / "file").write_bytes(os.urandom(100_000))
    repository, restic = Repository(str(folder / "kept"), password), SystemRestic()
    await restic.init(Programs(), repository)
    make_key_cheap(folder / "kept", "secret")
    await restic.keep_file(Programs(), repository, file, ["ours"])
    packs = [pack for pack in (folder / "kept" / "data").rglob("*") if pack.is_file()]
    return repository, max(packs, key=lambda pack: pack.stat().st_size)
