"""A restic repository whose data was overwritten, cut or lost on its disk is recognised by the part that has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from svc_actors.panel.recovery.remote import Programs
from svc_common.errors import ServiceError, unavailable
from svc_webhost.programs import ExitedError
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


NAME = "5f" * 32
DROPPED = """load indexes
check all packs
check snapshots, trees and blobs
Load(<data/5f5f5f5f5f>, 300127, 0) returned error, retrying after 552.330144ms: ReadFull: unexpected EOF
"""


@dataclass
class Said:
    """restic, which writes this about each check and then fails in this way. The repository opens."""

    lines: str
    error: ServiceError

    async def __call__(
        self, command: Sequence[str], *, read: Callable[[list[str]], Awaitable[None]] | None = None, **_: object
    ) -> None:
        assert read is not None
        if "check" in command:
            await read(self.lines.splitlines())
            raise self.error
        await read(["[]"])


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("load indexes", None),
        (f"pack {NAME}: does not exist", None),
        ("read 12.5% of data packs", 128 + signal.SIGKILL),
        (DROPPED + "checkPack: Load(<data/5f5f5f5f5f>): connection lost\nFatal: repository contains errors", 1),
        (f"{DROPPED}pack {NAME} contains 1 errors: [partial download error: unexpected EOF]\nFatal: x", 1),
        (f"{DROPPED}download error: timeout\nFatal: repository contains errors", 1),
        (f"check successful on second attempt, original error pack {NAME} contains 1 errors: [Load(): EOF]", 1),
        (DROPPED + "error for tree c649d543:\n  ReadFull: unexpected EOF\nFatal: repository contains errors", 1),
        (f"pack {NAME}: not referenced in any index\nFatal: unable to create lock", 1),
        (f"pack {NAME}: does not exist", 130),
    ],
    ids=["timeout", "late", "memory", "transfer", "partial", "download", "once", "tree", "orphan", "interrupted"],
)
async def test_what_ends_a_reading_otherwise_is_no_damage(tmp_path: Path, lines: str, status: int | None) -> None:
    error = unavailable("It took too long.") if status is None else ExitedError(status, "It failed.")

    with pytest.raises(ServiceError) as failed:
        await SystemRestic().read_data(Said(lines, error), Repository(str(tmp_path), tmp_path / "p"), 1, PARTS, None)

    assert not isinstance(failed.value, DamagedDataError)


@pytest.mark.parametrize(
    ("lines", "packs", "words"),
    [
        (f"{DROPPED}Pack ID does not match, want {NAME}, got {'a8' * 32}", (NAME,), f"the pack {NAME}"),
        (f"pack {NAME} contains 2 errors: [unexpected pack id a8, blob 3]", (NAME,), f"the pack {NAME}"),
        (f"pack {NAME}: unexpected file size: got 300119, expected 300127", (NAME,), f"the pack {NAME}"),
        ("error for tree c649d543:\n  decrypting blob failed: ciphertext verification failed", (), "tree c649d543"),
        (
            f"pack {NAME} failed to download: StreamPack: read /b/5f: input/output error",
            (),
            f"errors in the pack {NAME}",
        ),
        ("something new", (), "names no pack"),
    ],
    ids=["0.14", "0.17", "size", "tree", "disk", "last line"],
)
async def test_what_restic_says_of_damage_is_read(
    tmp_path: Path, lines: str, packs: tuple[str, ...], words: str
) -> None:
    run = Said(f"{lines}\nFatal: repository contains errors", ExitedError(1, "It failed."))

    with pytest.raises(DamagedDataError, match=words) as damaged:
        await SystemRestic().read_data(run, Repository(str(tmp_path), tmp_path / "p"), 1, PARTS, None)

    assert damaged.value.packs == packs


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
