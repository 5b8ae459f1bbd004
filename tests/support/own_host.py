"""A host of their own for the tests marked `own_host`: a libvirt, devices, routes and rules that no other test sees.

The tests of one pytest that are so marked run in a process forked from it, in namespaces of its own, one after the
other. So any number of pytests have such tests at once, and one may have them together with tests of any other kind.
Rejected: a fixture that enters the namespaces, as threads that exist by then would stay outside.

    pytest == forked --- [its network, mounts and name: libvirtd, guests, agents]
       ^         |
       +--- reports, a line each

pytest itself reaps the daemons and guests as they end, as an init system does: libvirt waits for it at every end of a
QEMU. Under xdist nothing of this happens; there the tests use the machine's own libvirt.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Never, TextIO
from uuid import uuid4

import pytest

from tests.support.restic_stand_in import STAND_IN, write_stand_in

MARK: Final = "own_host"
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)

_HOST: Final = r"""
set -e
mount --make-rprivate /
for place in /var/lib/libvirt /var/log/libvirt /etc/libvirt /var/cache/libvirt; do
    mkdir -p "$OWN$place"
    # Without this machine's own guests, which come and go meanwhile.
    if [ "$place" = /etc/libvirt ]; then
        tar -C "$place" --exclude=./qemu -c . | tar -C "$OWN$place" -x
        mkdir "$OWN$place/qemu"
    fi
    mount --bind "$OWN$place" "$place"
done
# What signs the certificates of TPMs: a test takes it from its account, on a machine that has one.
if [ -d /var/lib/swtpm-localca ]; then
    mkdir "$OWN/authority"
    chown --reference=/var/lib/swtpm-localca "$OWN/authority"
    chmod --reference=/var/lib/swtpm-localca "$OWN/authority"
    mount --bind "$OWN/authority" /var/lib/swtpm-localca
fi
# /sys shows the network of whoever mounts it; control groups are the machine's.
mkdir "$OWN/cgroup" "$OWN/dev"
mount --rbind /sys/fs/cgroup "$OWN/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$OWN/cgroup" /sys/fs/cgroup
# Devices that a test may take away.
mount -t tmpfs -o mode=755 tmpfs "$OWN/dev"
cp -a --one-file-system /dev/. "$OWN/dev"
for number in $(seq 0 63); do [ -e "$OWN/dev/loop$number" ] || mknod "$OWN/dev/loop$number" b 7 "$number"; done
for place in pts shm; do
    mount --bind "/dev/$place" "$OWN/dev/$place"
done
# Each mount that is listed below /dev is one that libvirt moves.
awk '$2 ~ "^/dev/" { print $2 }' /proc/self/mounts | sort -r | while read -r place; do umount -l "$place"; done
mount --move "$OWN/dev" /dev
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p -m 1777 /run/lock
mkdir -p /run/libvirt
echo "$HOST_UUID" | tr -d - > "$OWN/machine-id"
mount --bind "$OWN/machine-id" /etc/machine-id
echo "host_uuid = \"$HOST_UUID\"" >> /etc/libvirt/libvirtd.conf
ip link set lo up
ip link add eth0 type veth peer name outside
ip link set outside up
ip link set eth0 up
ip address add 192.0.2.2/24 dev eth0
ip route add default via 192.0.2.1
"""


def outside() -> list[str]:
    """What begins a command that needs the machine's own network, of a test on a host of its own."""
    return ["nsenter", f"--net={_machine}", "--"] if _machine is not None else []


_machine: Path | None = None


def run_on_own_host(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Run the items in a forked process, and report them here as they end; the rest in another one, where that process
    ends in the middle of a test."""
    while items:
        items = _run_on_one_host(session, items)


def _run_on_one_host(session: pytest.Session, items: list[pytest.Item]) -> list[pytest.Item]:
    """Gives those that it did not come to."""
    folder = Path(tempfile.mkdtemp(prefix="svc-own-host-", dir="/var/tmp"))
    folder.chmod(0o755)
    reading, writing = os.pipe()
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        if (child := os.fork()) == 0:
            _run(session, items, folder, os.fdopen(writing, "w"))
        os.close(writing)
        # The pipe is closed first: a child that is interrupted must not wait for a reader.
        with _reaped(child), os.fdopen(reading) as lines:
            return _report(session, items, lines)
    finally:
        _control(_PR_SET_CHILD_SUBREAPER, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _report(session: pytest.Session, items: list[pytest.Item], lines: TextIO) -> list[pytest.Item]:
    hook = session.config.hook
    left = list(items)
    for line in lines:
        if "error" in (data := json.loads(line)):
            raise session.Interrupted(f"the host of their own has failed:\n{data['error']}")
        report = hook.pytest_report_from_serializable(config=session.config, data=data)
        if isinstance(report.longrepr, list):  # of a skip; JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        item = left[0]
        if report.when == "setup":
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            del left[0]
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
    if left:
        item = left[0]
        words = "the process of the tests on a host of their own has ended in this one"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return left[1:]


@contextmanager
def _reaped(child: int) -> Iterator[None]:
    """The child is gone when the block ends, and so is all that it has left: guests, daemons, agents."""

    def reap() -> None:
        while os.waitpid(-1, 0)[0] != child:
            pass

    reaper = threading.Thread(target=reap, name="reaper")
    reaper.start()
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)
        reaper.join()
        while orphans := _children():
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            found += map(int, task.read_text().split())
    return found


def _run(session: pytest.Session, items: list[pytest.Item], folder: Path, told: TextIO) -> Never:
    """In the forked process."""
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Teller(config, told))
    try:
        _control(_PR_SET_PDEATHSIG, signal.SIGINT)
        _enter(folder)
        for item, following in zip(items, [*items[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except BaseException:  # noqa: BLE001  # handed to the process that waits for it
        with suppress(BrokenPipeError):
            told.write(json.dumps({"error": traceback.format_exc()}) + "\n")
            told.flush()
    finally:
        os._exit(0)


class _Teller:
    def __init__(self, config: pytest.Config, told: TextIO) -> None:
        self._config, self._told = config, told

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._told.write(json.dumps(data, default=str) + "\n")
        self._told.flush()


def _enter(folder: Path) -> None:
    global _machine
    if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: these tests need root")
    _machine = Path(f"/proc/{os.getppid()}/ns/net")
    stand_in = str(write_stand_in(folder))
    environment = dict(os.environ) | {"OWN": str(folder), "HOST_UUID": str(uuid4()), "RESTIC": stand_in}
    subprocess.run(["sh", "-c", _HOST + STAND_IN], check=True, env=environment)


def _control(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
