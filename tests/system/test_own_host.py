"""Tests marked `own_host`, each run by a pytest of its own: what they see of this machine, and what is told of them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARK = "SVC_TESTS_STARTED_BY"
SUITE = """
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.own_host import outside

def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

@pytest.mark.own_host
def test_its_network_and_devices_are_its_own():
    assert os.readlink("/proc/self/ns/net") != {network!r}
    assert os.readlink("/proc/self/ns/mnt") != {mounts!r}
    assert output(*outside(), "readlink", "/proc/self/ns/net").strip() == {network!r}
    Path("/dev/full").unlink()
    output("virtlogd", "-d")
    output("libvirtd", "-d")
    assert output("virsh", "-q", "list", "--all").strip() == ""

@pytest.mark.own_host
def test_that_is_the_end_of_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.own_host
def test_that_fails():
    assert 1 == 2, "as intended"

def test_of_any_other_kind():
    assert os.readlink("/proc/self/ns/net") == {network!r}
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    suite = folder / "test_suite.py"
    suite.write_text(SUITE.format(network=os.readlink("/proc/self/ns/net"), mounts=os.readlink("/proc/self/ns/mnt")))
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command += ["-c", ROOT / "pyproject.toml", "--rootdir", folder, "--basetemp", folder / "temporary", suite]
    environment = os.environ | {MARK: str(folder)}
    return subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, cwd=ROOT, env=environment
    )


def test_what_they_do_is_unseen_outside_and_told_as_of_any_test(tmp_path: Path) -> None:
    ended = run(tmp_path, "-k", "not end_of")

    assert "1 failed, 2 passed" in ended.stdout
    assert "AssertionError: as intended" in ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert Path("/dev/full").exists()
    assert left_of(tmp_path) == []


def test_where_the_first_failure_ends_the_run_it_does(tmp_path: Path) -> None:
    ended = run(tmp_path, "-x", "-k", "not end_of")

    assert "1 failed, 1 passed" in ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_process_that_ends_early_fails_its_test_and_no_other(tmp_path: Path) -> None:
    ended = run(tmp_path)

    assert "test_suite.py::test_that_is_the_end_of_its_process FAILED" in ended.stdout
    assert "has ended in this one" in ended.stdout
    assert "2 failed, 2 passed" in ended.stdout
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED


def left_of(folder: Path) -> list[str]:
    """What runs of all that `run` has started, libvirt's daemons among them: other lanes have some of their own."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "comm").read_text().strip())
    return found
