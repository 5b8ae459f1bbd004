"""Scheduled tasks with real interpreters: as the account of their site, within its limits, and gone when cut short."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.site_runtime import prepare_shared_sockets, site_service
from svc_webhost.site_tasks import HostTasks, Interpreter, SiteScript
from svc_webhost.site_use import site_uses
from tests.support.launchers import keeper_place, until

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA, BOB = SiteAccount(9_462_001), SiteAccount(9_462_002)
"""Far above what other servers in the same machine have."""


@pytest.fixture
async def folders() -> AsyncIterator[HostFolders]:
    async with keeper_place() as place:
        folders = HostFolders(place.folder)
        folders.data.chmod(0o711)
        await trio.to_thread.run_sync(prepare_shared_sockets, folders)
        for account in (ADA, BOB):
            for folder in (folders.sites / account.name, folders.sites / account.name / "private"):
                folder.mkdir(parents=True)
                os.chown(folder, account.uid, account.uid)
        (folders.sites / BOB.name / "secret").write_text("of Bob")
        yield folders


def script(
    folders: HostFolders, text: str, *arguments: str, by: Interpreter = Interpreter.PYTHON, memory: int | None = None
) -> SiteScript:
    (folders.sites / ADA.name / "private" / "task").write_text(text)
    return SiteScript(ADA, by, "private/task", arguments, Limits(memory_mib=memory, processes=50), "test/1")


async def ran(folders: HostFolders, task: SiteScript) -> tuple[int, list[str]]:
    lines: list[str] = []

    async def take(some: list[str]) -> None:
        lines.extend(some)

    status = await HostTasks(folders, KeeperLauncher(folders), 80, 443).run(task, take)
    return status, lines


async def test_a_python_script_runs_as_its_site_and_sees_no_other(folders: HostFolders) -> None:
    text = f"""
import os, sys
print(os.getuid(), os.getcwd(), sys.argv[1:], os.nice(0))
print(os.listdir("/tmp"), os.path.exists("{folders.sites / BOB.name / "secret"}"))
open("/tmp/of-a-task", "w"); open("made", "w")
sys.exit(7)
"""

    status, lines = await ran(folders, script(folders, text, "--all", "$(id); `id`"))

    home = folders.sites / ADA.name
    assert lines == [f"{ADA.uid} {home} ['--all', '$(id); `id`'] 10", f"['{folders.data.name}'] False"]
    assert status == 7
    assert (home / "made").stat().st_uid == ADA.uid
    assert not Path("/tmp/of-a-task").exists()


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (Interpreter.NODE, "console.log(process.getuid(), process.argv[2])"),
        (Interpreter.PHP, "<?php echo posix_getuid(), ' ', $argv[1], PHP_EOL;"),
    ],
)
async def test_other_interpreters_run_their_scripts(folders: HostFolders, by: Interpreter, text: str) -> None:
    status, lines = await ran(folders, script(folders, text, "given", by=by, memory=512))

    assert (status, lines) == (0, [f"{ADA.uid} given"])


async def test_what_a_task_of_a_copy_would_mail_is_kept_in_the_copy(folders: HostFolders) -> None:
    text = """<?php
function apply_filters($name, $value) { return $value; }
echo wp_mail('ada@example.com', 'By WordPress', 'one') ? 'kept ' : 'lost ';
echo mail('ada@example.com', 'By PHP', 'two') ? 'kept ' : 'lost ';
file_put_contents('private/inner', "<?php echo mail('ada@example.com', 'By its child', 'three') ? 'kept' : 'lost';");
passthru('php private/inner');
"""

    status, lines = await ran(folders, replace(script(folders, text, by=Interpreter.PHP), staged=True))

    mails = sorted(file.read_text() for file in (folders.sites / ADA.name / "private" / "mail").glob("*.eml"))
    assert (status, lines) == (0, ["kept kept kept"])
    assert len(mails) == 3
    assert {each for each in ("By WordPress", "By PHP", "By its child") if any(each in mail for mail in mails)} == {
        "By WordPress",
        "By PHP",
        "By its child",
    }


async def test_a_script_that_takes_more_memory_than_its_site_has_fails(folders: HostFolders) -> None:
    text = "x = bytearray(200 * 2**20); print('had it')"

    within = await ran(folders, script(folders, text, memory=512))
    beyond = await ran(folders, script(folders, text, memory=100))

    assert within == (0, ["had it"])
    assert beyond[0] == 1
    assert beyond[1][-1] == "MemoryError"


_KEPT = {
    "memfd": "fd = os.memfd_create('x'); [os.write(fd, b'x' * (1 << 20)) for _ in range(512)]",
    "shared map": "m = mmap.mmap(-1, 512 << 20); [m.seek(i << 20) or m.write(b'x' * (1 << 20)) for i in range(512)]",
    "tmpfs": "f = open('/dev/shm/x', 'wb'); [f.write(b'x' * (1 << 20)) for _ in range(240)]",
}


@pytest.mark.parametrize("kept", _KEPT)
async def test_memory_that_no_process_has_in_its_size_is_within_the_limit_of_the_site(
    folders: HostFolders, kept: str
) -> None:
    text = f"import mmap, os\n{_KEPT[kept]}\nprint('had it')"

    status, lines = await ran(folders, script(folders, text, memory=128))

    assert (status, lines) == (128 + 9, [])


async def test_a_task_shares_the_processor_of_its_site(folders: HostFolders) -> None:
    limits = Limits(cpu_percent=50, memory_mib=256, processes=50)
    service = site_service(folders, ADA, "busy", ("/bin/sh", "-c", "while :; do :; done"), limits=limits)
    status = await KeeperLauncher(folders).ensure(service)
    text = """
import os, time
until = time.monotonic() + 3
for _ in range(7):
    if os.fork() == 0:
        while time.monotonic() < until: pass
        os._exit(0)
for _ in range(7): os.wait()
print(sum(os.times()[:4]))
"""
    used, seen, began = _processor(status.pid), _seen_by_health(), trio.current_time()

    _, lines = await ran(folders, replace(script(folders, text), limits=limits))

    used, took = _processor(status.pid) - used + float(lines[0]), trio.current_time() - began
    assert used <= 0.5 * took + 0.3
    assert used - 0.3 <= _seen_by_health() - seen


def _seen_by_health() -> float:
    """What health names the site for, tasks that have ended included."""
    seconds = site_uses()[ADA.number].processor_seconds
    assert seconds is not None, "this server counts processor time for no group"
    return seconds


async def test_what_is_cut_short_is_gone_with_all_that_it_started(folders: HostFolders) -> None:
    text = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("begun", flush=True)
    time.sleep(1000)
time.sleep(1000)
"""
    begun = trio.Event()

    async def take(lines: list[str]) -> None:
        begun.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(HostTasks(folders, KeeperLauncher(folders), 80, 443).run, script(folders, text), take)
        await begun.wait()
        running = of_ada()
        nursery.cancel_scope.cancel()

    assert len(running) == 3
    assert of_ada() == []


async def test_a_task_ends_with_the_process_that_the_core_has_for_it(folders: HostFolders) -> None:
    begun = trio.Event()

    async def take(lines: list[str]) -> None:
        begun.set()

    async def is_gone() -> bool:
        return of_ada() == []

    task = script(folders, "print('begun', flush=True); import time; time.sleep(1000)")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HostTasks(folders, KeeperLauncher(folders), 80, 443).run, task, take)
        await begun.wait()
        [running] = of_ada()
        parent = Path(f"/proc/{running}/stat").read_text().rpartition(") ")[2].split()[1]
        os.kill(int(parent), signal.SIGKILL)
        await until(is_gone)


def _processor(pid: int | None) -> float:
    """Seconds that the process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_ada() -> list[str]:
    """Processes of the account."""
    return [entry for entry in os.listdir("/proc") if entry.isdigit() and is_of_ada(Path("/proc", entry))]


def is_of_ada(process: Path) -> bool:
    try:
        return process.stat().st_uid == ADA.uid
    except FileNotFoundError:
        return False
