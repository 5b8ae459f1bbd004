"""Logs of sites' programs: everything that is said is in them, and no more than a log may have is on the disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.log_writer import KEPT
from svc_webhost.site_logs import flush_logs, log_pipe, log_service, site_log

ADA, BOB = SiteAccount(1001), SiteAccount(1002)
_LARGEST = 64 * 1024
_BOUND = (KEPT + 1) * (_LARGEST + 65_536)
"""Each may have what is read at once beyond its limit."""


@pytest.fixture
def folders(tmp_path: Path) -> HostFolders:
    folders = HostFolders(tmp_path)
    folders.log_pipes.mkdir(parents=True)
    for account in (ADA, BOB):
        (folders.site_logs / account.name).mkdir(parents=True)
    return folders


@contextmanager
def writer(folders: HostFolders, rate: int = 1 << 30) -> Iterator[None]:
    service = log_service(folders, largest=_LARGEST, rate=rate)
    with subprocess.Popen(service.command) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def program(folders: HostFolders, account: SiteAccount) -> Iterator[int]:
    """What a program of the site says is written to this descriptor."""
    pipe = log_pipe(folders, account, "app")
    if not pipe.exists():
        os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():
            await trio.sleep(0.01)  # The writer is another process.


def on_the_disk(log: Path) -> int:
    """Files get other names meanwhile."""
    size = 0
    for path in log.parent.iterdir():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def test_what_is_said_is_in_the_log_once_it_is_asked_for(folders: HostFolders) -> None:
    log = site_log(folders, ADA, "app")

    with writer(folders), program(folders, ADA) as said, program(folders, BOB) as other:
        await until(log.exists)
        for number in range(20):
            os.write(said, f"{number}\n".encode())
            await flush_logs(folders, ADA, "app")
            assert log.read_text().endswith(f"{number}\n")
        os.write(other, b"of Bob\n")
        await flush_logs(folders, BOB, "app")

    assert log.read_text() == "".join(f"{number}\n" for number in range(20))
    assert site_log(folders, BOB, "app").read_text() == "of Bob\n"


async def test_a_program_that_never_stops_writing_takes_no_more_of_the_disk_than_its_logs_may(
    folders: HostFolders,
) -> None:
    log = site_log(folders, ADA, "app")
    line = b"x" * 1023 + b"\n"

    with writer(folders), program(folders, ADA) as said:
        for number in range(1, 8 * KEPT * _LARGEST // len(line)):
            await trio.to_thread.run_sync(os.write, said, line)
            assert number % 100 or on_the_disk(log) <= _BOUND
        os.write(said, b"the end\n")
        await flush_logs(folders, ADA, "app")

    assert sorted(path.name for path in log.parent.iterdir()) == [
        "app.log",
        *(f"app.log.{number}" for number in range(1, KEPT + 1)),
    ]
    assert on_the_disk(log) <= _BOUND
    assert log.read_text().endswith("the end\n")


async def test_a_program_that_says_too_much_waits_and_another_site_is_heard(folders: HostFolders) -> None:
    with writer(folders, rate=4096), program(folders, ADA) as said, program(folders, BOB) as other:
        os.set_blocking(said, False)
        taken = 0

        def full() -> bool:
            nonlocal taken
            try:
                while True:
                    taken += os.write(said, b"x" * 4096)
            except BlockingIOError:
                return taken >= 8 * 4096 + 65_536

        await until(full)
        os.write(other, b"of Bob\n")
        await until(lambda: site_log(folders, BOB, "app").exists())
        await flush_logs(folders, BOB, "app")

    assert site_log(folders, BOB, "app").read_text() == "of Bob\n"
    # What it may say at once, what one reading takes beyond that, and what stays in the pipe; the test takes seconds.
    assert taken < 1 << 20


async def test_what_is_said_while_the_writer_is_away_is_in_the_log_of_the_next(folders: HostFolders) -> None:
    log = site_log(folders, ADA, "app")

    with program(folders, ADA) as said:
        with writer(folders):
            os.write(said, b"before\n")
            await until(log.exists)
            await flush_logs(folders, ADA, "app")
        os.write(said, b"meanwhile\n")
        with writer(folders):
            await until(lambda: "meanwhile" in log.read_text())

    assert log.read_text() == "before\nmeanwhile\n"


async def test_a_log_of_a_site_that_is_gone_is_not_made_anew(folders: HostFolders) -> None:
    log = site_log(folders, ADA, "app")

    with writer(folders), program(folders, ADA) as said:
        await until(log.exists)
        log.unlink()
        log.parent.rmdir()
        os.write(said, b"a last word\n")
        await flush_logs(folders, ADA, "app")
        log_pipe(folders, ADA, "app").unlink()

    assert not log.parent.exists()
