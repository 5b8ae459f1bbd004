"""Which logs get new files, whatever becomes of their folders meanwhile."""

from __future__ import annotations

import resource
from pathlib import Path

from svc_actors.host.folders import HostFolders
from svc_actors.host.nginx import Generations, Ports
from svc_actors.host.nginx.logs import LARGEST, rotate
from tests.support.panel import RecordedLauncher


def large(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(LARGEST)
    return path


def test_a_log_that_was_renamed_and_never_begun_anew_is_in_need_of_a_reload(tmp_path: Path) -> None:
    log = large(tmp_path / "access.log")

    first = rotate(tmp_path)
    again = rotate(tmp_path)
    log.touch()
    begun_anew = rotate(tmp_path)

    assert (first, again, begun_anew) == (1, 1, 0)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["access.log", "access.log.1"]


async def test_a_site_that_is_deleted_meanwhile_keeps_no_other_log_from_its_new_file(tmp_path: Path) -> None:
    folders = HostFolders(tmp_path)
    kept = [large(folders.site_logs / name / "access.log") for name in ("s1001", "s1003")]
    gone = folders.site_logs / "s1002" / "access.log"
    gone.parent.mkdir()
    # It is listed, and is not there when it is looked at.
    gone.symlink_to("nowhere")

    rotated = await Generations(folders, RecordedLauncher(), Ports(80, 443, ipv6=False)).rotate_logs()

    assert rotated == 2
    assert [path.with_name("access.log.1").exists() for path in kept] == [True, True]


def test_a_log_that_its_program_never_opens_anew_is_copied_and_emptied(tmp_path: Path) -> None:
    log = large(tmp_path / "php.log")
    with log.open("ab") as kept_open:
        rotated = rotate(tmp_path)
        kept_open.write(b"goes on\n")

    assert rotated == 0
    assert log.read_text() == "goes on\n"
    assert (tmp_path / "php.log.1").stat().st_size == LARGEST


def test_of_a_log_that_is_larger_than_any_may_be_the_end_is_kept(tmp_path: Path) -> None:
    log = large(tmp_path / "app.log")
    with log.open("ab") as file:
        file.truncate(3 * LARGEST)
        file.write(b"the end\n")

    rotate(tmp_path)

    kept = (tmp_path / "app.log.1").read_bytes()
    assert (log.stat().st_size, len(kept)) == (0, LARGEST)
    assert kept.endswith(b"the end\n")


def test_a_log_is_emptied_also_where_there_is_no_room_for_a_copy(tmp_path: Path) -> None:
    large(tmp_path / "app.log")
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST // 2, hard))
    try:
        rotate(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"app.log": 0}
