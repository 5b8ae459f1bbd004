"""A dump is kept when it is whole, and setting up an engine is begun anew until it has come to its end."""

from __future__ import annotations

import getpass
import gzip
import subprocess
from pathlib import Path

import pytest
import trio

from svc_webhost.databases import DatabaseError
from svc_webhost.databases.instance import Instance
from svc_webhost.databases.transfer import dump_command
from svc_webhost.launcher import Service, ServiceName
from svc_webhost.programs import Program
from tests.support.panel import RecordedLauncher

MARKER = "-- Dump completed"
WHOLE = "CREATE TABLE t (id int);\n-- Dump completed on 2026-11-22\n\n"


def dumped(file: Path, output: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.stdout.write({output!r}); sys.exit({status})"
    command = dump_command(file, MARKER, ("/usr/bin/python3", "-c", program))
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_whole_dump_is_kept_compressed(tmp_path: Path) -> None:
    ended = dumped(tmp_path / "d.sql.gz", WHOLE)

    assert ended.returncode == 0, ended.stdout
    assert gzip.decompress((tmp_path / "d.sql.gz").read_bytes()).decode() == WHOLE
    assert [file.name for file in tmp_path.iterdir()] == ["d.sql.gz"]


@pytest.mark.parametrize(
    ("output", "status", "told"),
    [("CREATE TABLE t (id int);\n", 0, "ended before its last line"), (WHOLE, 3, ""), ("", 0, "ended before")],
)
def test_one_that_is_not_whole_leaves_nothing(tmp_path: Path, output: str, status: int, told: str) -> None:
    ended = dumped(tmp_path / "d.sql.gz", output, status)

    assert ended.returncode == (status or 1)
    assert told in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_dump_stays_when_the_next_one_fails(tmp_path: Path) -> None:
    dumped(tmp_path / "d.sql.gz", WHOLE)

    dumped(tmp_path / "d.sql.gz", "half", 1)

    assert gzip.decompress((tmp_path / "d.sql.gz").read_bytes()).decode() == WHOLE


async def test_setting_up_that_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    programs = iter(["touch half; exit 1", "test ! -e half && touch whole"])

    async def answers() -> None:
        await trio.lowlevel.checkpoint()

    instance = Instance(
        tmp_path / "engine",
        tmp_path / "sockets",
        getpass.getuser(),
        RecordedLauncher(),
        lambda: Service(ServiceName("engine"), ("/bin/true",)),
        lambda data: Program(("/bin/sh", "-c", next(programs)), folder=data),
        answers,
    )

    with pytest.raises(DatabaseError, match="could not be set up"):
        await instance.ensure()
    first = instance.exists
    await instance.ensure()

    assert not first
    assert [file.name for file in instance.data.iterdir()] == ["whole"]
