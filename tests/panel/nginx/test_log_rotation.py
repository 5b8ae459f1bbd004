"""Which logs get new files, whatever becomes of their folders meanwhile."""

from __future__ import annotations

from pathlib import Path

from svc_webhost.folders import HostFolders
from svc_webhost.log_writer import LARGEST
from svc_webhost.nginx import Generations, Ports
from svc_webhost.nginx.logs import rotate
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
