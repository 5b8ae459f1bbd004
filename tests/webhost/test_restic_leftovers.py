"""What a restic that was killed leaves in a repository is gone before the next one writes there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from svc_actors.panel.recovery.remote import Programs
from svc_common.errors import ServiceError
from svc_webhost.restic import Repository, SystemRestic


async def test_a_file_that_was_being_written_goes_with_the_lock_of_who_wrote_it(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    place = tmp_path / "kept [1]"
    repository, restic = Repository(str(place), password), SystemRestic()
    await restic.init(Programs(), repository)
    await _killed_while_it_writes(repository)
    (place / "data/00").mkdir(exist_ok=True)
    unfinished = [place / folder / f"{'5' * 64}-tmp-1871" for folder in ("data/00", "index")]
    for each in (*unfinished, tmp_path / "a-tmp-1"):
        each.write_bytes(b"unfinished")
    (place / "index" / "leads-tmp-out").symlink_to(tmp_path / "a-tmp-1")

    await restic.unlock(Programs(), repository)

    assert [each for each in unfinished if each.exists()] == []
    assert (tmp_path / "a-tmp-1").exists()
    assert list((place / "locks").iterdir()) == []
    assert await restic.snapshots(Programs(), repository) == []


async def test_a_lock_of_another_host_is_named_and_stops_no_restoration(tmp_path: Path) -> None:
    (password := tmp_path / "password").write_text("secret")
    (file := tmp_path / "file").write_text("hello")
    repository, restic = Repository(str(tmp_path / "kept"), password), SystemRestic()
    await restic.init(Programs(), repository)
    snapshot = await restic.keep_file(Programs(), repository, file, ["ours"])
    await _killed_while_it_writes(repository, "unshare", "-ru", "sh", "-c", 'hostname backup2 && exec "$@"', "sh")

    await restic.unlock(Programs(), repository)
    with pytest.raises(ServiceError) as refused:
        await restic.forget(Programs(), repository, [snapshot])
    await restic.restore(Programs(), repository, snapshot, tmp_path / "restored")

    assert " of root on the host backup2 has locked the repository since 20" in refused.value.message
    assert (tmp_path / "restored" / "file").read_text() == "hello"


async def _killed_while_it_writes(repository: Repository, *starter: str) -> None:
    environment = os.environ | {
        "RESTIC_REPOSITORY": repository.location,
        "RESTIC_PASSWORD_FILE": str(repository.password_file),
    }
    command = [*starter, "restic", "--no-cache", "backup", "--stdin"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, env=environment)
    with trio.fail_after(60):
        while not list(Path(repository.location, "locks").iterdir()):
            await trio.sleep(0.01)  # restic writes it outside of this process.
    process.send_signal(signal.SIGKILL)
    await process.wait()
