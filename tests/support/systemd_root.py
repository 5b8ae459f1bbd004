"""A Debian with systemd as its first process, in namespaces of its own on this host: what a service is installed into.

Its network has the loopback device alone. Everything in it ends with its first process. It has a control group of its
own: a namespace of control groups begins where the process is that enters it, so two roots would both have this
machine's `system.slice`, and the unit of one would hold the processes of the other's unit of that name.

What a root consists of before it boots is made once a week and kept where the images for tests are: debootstrapping one
of the panel takes minutes of a busy machine, unpacking it seconds. It is unpacked into memory where there is plenty: a
root has a gigabyte of files, and dpkg and the panel's updates wait until the disk has all that the machine wrote.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tests.support.image_paths import IMAGES

SMALL = "adduser,ca-certificates,curl,procps,python3"
"""What the controller's package depends on, and what tests use themselves."""
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_TIMEOUT = 300.0
_MAKE_SECONDS = "840"
"""Less than a test that is cut has."""
_MEMORY = Path("/dev/shm")
_PLENTY = 10 << 30
"""Bytes of available memory: three lanes may have a root each, of up to 2.5 GB with the releases of the panel."""

# Where this mount namespace sees control groups of version 2, whether or not the machine has them mounted.
_GROUPS = """
set -e
mount -t cgroup2 cgroup2 /sys/fs/cgroup
above=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)
"""
_JOIN_OWN_GROUP = f"""
{_GROUPS}
for controller in cpu memory pids; do
    echo +$controller 2>/dev/null >"$above/cgroup.subtree_control" || true  # This machine may not have it to give.
done
mkdir "$above/$0"
echo $$ >"$above/$0/cgroup.procs"
exec "$@"
"""
_REMOVE_GROUP = f"""
{_GROUPS}
for _ in $(seq 200); do
    find "$above/$0" -depth -type d -exec rmdir {{}} + 2>/dev/null || true
    [ -e "$above/$0" ] || exit 0
    sleep 0.1  # Its last processes are ending.
done
"""
_IN_OWN_MOUNTS = ("unshare", "--mount", "--propagation=private", "sh", "-c")

# Beside its first process, as if that had started it.
_ENTER = """
echo $$ >"/proc/$0/root/sys/fs/cgroup/init.scope/cgroup.procs" && exec nsenter --target "$0" "$@"
"""

# The root becomes a mount of its own, then `/`; what systemd expects of a container is there when it begins
# (systemd.io/CONTAINER_INTERFACE).
_BOOT = """
set -e
mount --bind "$0" "$0"
mount -o remount,bind,suid,dev,exec "$0"
cd "$0"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm dev/net old
: >dev/net/tun
mount --bind /dev/net/tun dev/net/tun
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
ip link set lo up
pivot_root . old
umount -l /old
rmdir /old
exec env -i container=tests PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target
"""


@dataclass(frozen=True)
class SystemdRoot:
    folder: Path
    init: int
    """The process id of its first process, as the host counts."""

    @property
    def enter(self) -> tuple[str, ...]:
        """The beginning of a command that runs in it."""
        namespaces = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
        environment = ("env", "-i", f"PATH={_PATH}", "DEBIAN_FRONTEND=noninteractive")
        return ("sh", "-c", _ENTER, str(self.init), *namespaces, *environment)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Begin a command that is not waited for."""
        return subprocess.Popen([*self.enter, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, *command: str, check: bool = True) -> str:
        """What a command in it writes to its standard output; what it writes to the other one is in the error."""
        ended = subprocess.run(
            [*self.enter, *command],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and ended.returncode != 0:
            raise AssertionError(f"{command} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def until(self, *command: str, within: float = 180.0) -> str:
        """Run a command again and again until it succeeds."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            try:
                return self.run(*command)
            except AssertionError as error:
                last = error
                time.sleep(0.2)
        raise last

    @contextmanager
    def visited(self, url: str, *options: str) -> Iterator[list[int]]:
        """One visit after another for the length of the block; then there are curl's exit statuses of all of them."""
        script = 'while [ ! -e /run/visited ]; do curl -s -o /dev/null --max-time 60 "$@"; echo $?; done'
        command = [*self.enter, "sh", "-c", script, "sh", *options, url]
        statuses: list[int] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as visits:
            try:
                yield statuses
            finally:
                self.run("touch", "/run/visited")
                statuses += map(int, visits.communicate(timeout=90)[0].split())
                self.run("rm", "/run/visited")


@contextmanager
def systemd_root(folder: Path, packages: str) -> Iterator[SystemdRoot]:
    """A minimal Debian with `packages` (comma-separated) and systemd, booted. It is in memory, or else in `folder`."""
    with _roomy(folder) as place:
        yield from _booted(place / "root", packages)


@contextmanager
def _roomy(folder: Path) -> Iterator[Path]:
    if not _has_plenty():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="svc-tests-root-", dir=_MEMORY) as memory:
        os.chmod(memory, 0o755)
        yield Path(memory)


def _has_plenty() -> bool:
    figures = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(figures["MemAvailable"].split()[0]) << 10
    return available >= _PLENTY and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _PLENTY // 2


def _booted(root: Path, packages: str) -> Iterator[SystemdRoot]:
    root.mkdir()
    unpack = ["tar", "--extract", "--numeric-owner", "--preserve-permissions", "--xattrs", "--xattrs-include=*"]
    with _archive(packages) as archive:
        subprocess.run([*unpack, "--file=-", "--directory", str(root)], stdin=archive, check=True, timeout=300)
    group = f"svc-test-{secrets.token_hex(4)}"
    namespaces = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--propagation=private")
    boot = ["unshare", "--kill-child", *namespaces, "sh", "-c", _BOOT, str(root)]
    try:
        with subprocess.Popen([*_IN_OWN_MOUNTS, _JOIN_OWN_GROUP, group, *boot]) as unshare:
            try:
                booted = SystemdRoot(root, _child_of(unshare.pid))
                booted.until("systemctl", "is-system-running", "--wait", within=_BOOT_TIMEOUT)
                yield booted
            finally:
                unshare.kill()
    finally:
        subprocess.run([*_IN_OWN_MOUNTS, _REMOVE_GROUP, group], check=True)


def _archive(packages: str) -> BinaryIO:
    """Of such a Debian that has not booted yet, with the packages as they were at most a week ago. It is open, since
    whoever makes the next week's removes it."""
    kind = hashlib.sha256(packages.encode()).hexdigest()[:12]
    archive = IMAGES / f"systemd-root-{kind}-{datetime.now(UTC):%G-%V}.tar"
    IMAGES.mkdir(parents=True, exist_ok=True)
    # Tests in several lanes may be the first of the week that need it.
    with (IMAGES / f"systemd-root-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(packages, kind, archive)
        return archive.open("rb")


def _make(packages: str, kind: str, archive: Path) -> None:
    part = archive.with_suffix(f".{os.getpid()}.part")
    options = ("--quiet", "--variant=minbase", "--format=tar", "--dpkgopt=force-unsafe-io")
    try:
        # With a limit of its own, at which mmdebstrap takes its mounts away, which it cannot when it is killed.
        made = subprocess.run(
            ["timeout", _MAKE_SECONDS, "mmdebstrap", *options, f"--include=systemd,{packages}", "bookworm", str(part)],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert made.returncode == 0, f"mmdebstrap: status {made.returncode}\n{made.stderr[-4000:]}"
        for old in IMAGES.glob(f"systemd-root-{kind}-*.tar"):
            old.unlink(missing_ok=True)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def _child_of(pid: int) -> int:
    deadline = time.monotonic() + _BOOT_TIMEOUT
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("systemd did not begin")
