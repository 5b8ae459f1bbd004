"""`svc controller backup` beside a running controller: what is in an archive, and what is never taken for one."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from svc.cli.failures import Exit
from svc.service.controller.backup import results
from svc.service.controller.backup.age import CannotDecrypt
from svc.service.controller.backup.archive import ArchiveReader
from svc_actors.store import Database
from tests.cli.conftest import House, Terminal, open_house

PASSPHRASE = "four words of an operator"
HOUR = timedelta(hours=1)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


@pytest.fixture
async def house(database_url: str, tmp_path: Path, kept: Path) -> AsyncIterator[House]:
    async with open_house(database_url, tmp_path) as opened:
        opened.environment |= {
            "SVC_DATABASE_URL": database_url,
            "SVC_CONTROLLER_DATA": str(tmp_path / "controller"),
            "SVC_BACKUP_TO": str(kept),
            "SVC_BACKUP_PASSPHRASE": PASSPHRASE,
        }
        yield opened


async def alert(house: House) -> str | None:
    items = (await house.ok("alert", "list", "-o", "json")).json["items"]
    return next((each["message"] for each in items if each["key"] == results.ALERT), None)


async def test_an_archive_holds_database_keys_and_settings_and_opens_with_the_passphrase_alone(
    house: House, kept: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "controller.toml"
    settings.write_text("[backup]\nkeep = 3\nevery = 12")
    settings.chmod(0o640)

    await house.ok("controller", "backup", "--config", str(settings))

    [archive] = kept.iterdir()
    with archive.open("rb") as file:
        manifest = ArchiveReader(file, PASSPHRASE).verify()
    assert {"secret.key", "tls/server.key", "tls/server.pem", "tls/authority.pem"} == set(manifest.files)
    assert manifest.files["secret.key"].mode == 0o600
    assert manifest.configuration is not None
    assert manifest.database.size > 10_000
    assert archive.stat().st_mode & 0o777 == 0o600
    secret = (tmp_path / "controller" / "secret.key").read_bytes()
    assert secret not in archive.read_bytes()
    with archive.open("rb") as file, pytest.raises(CannotDecrypt):
        ArchiveReader(file, PASSPHRASE + "x")
    assert await alert(house) is None


async def test_an_archive_that_was_cut_or_altered_is_found_by_verifying(house: House, kept: Path) -> None:
    await house.ok("controller", "backup")
    [archive] = kept.iterdir()
    whole = archive.read_bytes()
    good = await house.svc("controller", "backups", "--verify")
    found = []

    for broken in (whole[: len(whole) // 2], whole[:-1], whole[:100_000] + b"\0" + whole[100_001:], whole + b"x", b""):
        archive.write_bytes(broken)
        found.append(await house.svc("controller", "backups", "--verify"))

    assert good.code == Exit.OK
    assert "  ok  127.0.0.1" in good.out
    assert [ended.code for ended in found] == [Exit.FAILED] * 5
    assert all("  bad  " in ended.out for ended in found)


async def test_only_so_many_are_kept_and_the_oldest_go(house: House, kept: Path) -> None:
    for second in range(3):
        (kept / f"svc-controller-2026010{second}T000000Z.age").touch()
    (kept / "notes.txt").touch()

    await house.ok("controller", "backup", "--keep", "2")

    names = sorted(path.name for path in kept.iterdir())
    assert names[:2] == ["notes.txt", "svc-controller-20260102T000000Z.age"]
    assert len(names) == 3


async def test_a_failed_backup_leaves_nothing_is_an_alert_and_the_next_one_closes_it(house: House, kept: Path) -> None:
    missing = kept / "not-mounted"

    failed = await house.svc("controller", "backup", "--to", str(missing))

    assert failed.code == Exit.FAILED
    assert "there is no archive of it" in failed.err
    message = await alert(house)
    assert message is not None
    assert f"to {missing} failed, and there is no complete one" in message
    missing.mkdir()
    await house.ok("controller", "backup", "--to", str(missing))
    assert await alert(house) is None


async def test_a_timer_that_stopped_is_an_alert(house: House, database_url: str) -> None:
    await house.ok("controller", "backup", "--every", "6")
    async with Database.open(database_url, size=1) as database:
        await database.execute("UPDATE controller_backups SET ended_at = now() - interval '13 hours'")

        await results.look(database)

    message = await alert(house)
    assert message is not None
    assert "every 6 h, and the last complete one is of" in message


async def test_a_power_cut_in_the_middle_leaves_nothing_that_is_taken_for_an_archive(
    house: House, kept: Path, tmp_path: Path, database_url: str
) -> None:
    async with Database.open(database_url, size=1) as database:
        # Some seconds of work for a backup: what cannot be compressed.
        await database.execute(
            "CREATE TABLE ballast AS SELECT sha512(n::text::bytea) AS bytes FROM generate_series(1, 300000) n"
        )
    arguments = [sys.executable, "-c", "from svc.cli import main; main()", "controller", "backup"]
    variables = house.variables() | {"SVC_CONTROLLER_DATA": str(tmp_path / "controller")}
    process = await trio.lowlevel.open_process(arguments, env=variables)
    with trio.fail_after(60):
        while not any(path.stat().st_size > 1_000_000 for path in kept.iterdir()):
            await trio.sleep(0.005)  # another process writes; its file is what is waited for

    process.send_signal(signal.SIGKILL)
    await process.wait()

    [left] = kept.iterdir()
    assert left.name.endswith(".partial")
    assert (await house.ok("controller", "backups")).out == ""
    await house.ok("controller", "backup")
    [archive] = kept.iterdir()
    assert archive.name.endswith(".age")
    assert "  ok  " in (await house.ok("controller", "backups", "--verify")).out


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"SVC_BACKUP_PASSPHRASE": "short"}, "missing or has fewer than 12 characters"),
        ({"SVC_BACKUP_TO": ""}, "Where are the backups?"),
        ({"SVC_BACKUP_TO": "ftp://host/folder"}, "neither a folder nor sftp://"),
    ],
)
async def test_what_is_missing_is_told(tmp_path: Path, further: dict[str, str], said: str) -> None:
    terminal = Terminal(tmp_path, {"SVC_BACKUP_TO": str(tmp_path), "SVC_BACKUP_PASSPHRASE": PASSPHRASE})

    ended = await terminal.svc("controller", "backup", "--data", str(tmp_path / "data"), **further)

    assert ended.code in (Exit.INVALID, Exit.FAILED)
    assert said in ended.err


async def test_a_passphrase_file_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    file = tmp_path / "passphrase"
    file.write_text(PASSPHRASE + "\n")
    file.chmod(0o644)

    ended = await terminal.svc("controller", "backup", "--to", str(tmp_path), "--passphrase-file", str(file))

    assert ended.code == Exit.INVALID
    assert f"chmod o-r {file}" in ended.err
