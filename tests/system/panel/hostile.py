"""What a site's code tries on a server, told as JSON: every attempt that succeeded, by its name.

Run by the programs of one site, with nothing but the standard library; the first argument is a file with the targets.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
CLONE_NEWUSER, CLONE_NEWNS = 0x1000_0000, 0x0002_0000
IPC_CREAT, IPC_EXCL = 0o1000, 0o2000

Attempt = Callable[[], object]


def of_files(paths: list[str], home: str) -> Iterator[tuple[str, Attempt]]:
    for number, path in enumerate(paths):
        yield f"read {path}", partial(_open, path, os.O_RDONLY)
        yield f"write {path}", partial(_open, path, os.O_WRONLY | os.O_APPEND)
        yield f"list {path}", partial(os.listdir, path)
        yield f"chmod {path}", partial(os.chmod, path, 0o777)
        yield f"rename {path}", partial(os.rename, path, f"{path}.gone")
        yield f"link {path}", partial(os.link, path, f"{home}/tmp/link-{number}")
        yield f"through /proc/self/root{path}", partial(_open, f"/proc/self/root{path}", os.O_RDONLY)
        yield f"through a link {path}", partial(_through_link, path, home, number)


def _open(path: str, flags: int) -> None:
    os.close(os.open(path, flags, 0o600))


def _through_link(path: str, home: str, number: int) -> None:
    link = f"{home}/tmp/symbolic-{number}"
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(path, link)
    _open(link, os.O_RDONLY)


def of_sockets(paths: list[str]) -> Iterator[tuple[str, Attempt]]:
    for path in paths:
        yield f"connect {path}", partial(_connect, path)
        yield f"unlink {path}", partial(os.unlink, path)


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)


def of_processes(pids: list[int]) -> Iterator[tuple[str, Attempt]]:
    for pid in pids:
        yield f"signal {pid}", partial(os.kill, pid, 0)
        yield f"renice {pid}", partial(os.setpriority, os.PRIO_PROCESS, pid, 19)
        yield f"pin {pid}", partial(os.sched_setaffinity, pid, {0})
        yield f"trace {pid}", partial(_trace, pid)
        yield f"take a descriptor of {pid}", partial(_take_descriptor, pid)
        for name in ("environ", "cmdline", "maps", "mem", "root", "cwd", "fd", "cgroup", "mountinfo"):
            yield f"look into {pid}/{name}", partial(_look, f"/proc/{pid}/{name}")


def _look(path: str) -> None:
    if not os.path.lexists(path):
        raise FileNotFoundError(path)
    if os.path.isdir(path):
        os.listdir(path)
    else:
        Path(path).read_bytes()


def _trace(pid: int) -> None:
    for request in (PTRACE_SEIZE, PTRACE_ATTACH):
        if libc.ptrace(request, pid, None, None) == 0:
            libc.ptrace(PTRACE_DETACH, pid, None, None)
            return
    raise OSError(ctypes.get_errno(), "not traced")


def _take_descriptor(pid: int) -> None:
    handle = _checked(libc.syscall(SYS_PIDFD_OPEN, pid, 0))
    try:
        _checked(libc.syscall(SYS_PIDFD_GETFD, handle, 1, 0))
    finally:
        os.close(handle)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def of_rights(data: str, secret: str) -> Iterator[tuple[str, Attempt]]:
    yield "become root", lambda: os.setuid(0)
    yield "become the group of the web server", lambda: os.setgid(33)
    yield "change the root", lambda: os.chroot("/tmp")
    yield "a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    yield "a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    yield "a port below 1024", lambda: socket.socket().bind(("0.0.0.0", 81))
    yield "a device", lambda: os.mknod("/tmp/device", 0o60666, os.makedev(254, 0))
    yield "the host's name", lambda: socket.sethostname("owned")
    yield "a file for all of the server", partial(_open, "/etc/owned", os.O_CREAT | os.O_WRONLY)
    yield "a program for all of the server", partial(_open, "/usr/local/bin/owned", os.O_CREAT | os.O_WRONLY)
    yield "a setting of the kernel", partial(_open, "/proc/sys/kernel/core_pattern", os.O_WRONLY)
    yield "uncover what the panel has", lambda: _in_own_namespace("umount", "-l", data, then=secret)
    yield (
        "uncover processes",
        lambda: _in_own_namespace("mount", "-o", "remount,hidepid=0", "/proc", then="/proc/1/maps"),
    )
    yield "bind over", lambda: _in_own_namespace("mount", "--bind", "/proc/1/root", "/tmp", then=f"/tmp{secret}")
    yield (
        "control groups",
        lambda: _in_own_namespace("mount", "-t", "cgroup2", "none", "/tmp", then="/tmp/site-control"),
    )
    for path in ("/dev/mem", "/dev/kmem", "/dev/vda", "/dev/sda", "/dev/kmsg", "/dev/kvm"):
        yield f"the device {path}", partial(_open, path, os.O_RDWR)
    yield "write to control groups", lambda: _any_file_below("/sys/fs/cgroup")


def _in_own_namespace(*command: str, then: str) -> None:
    """What a user namespace of one's own permits: in it one is root."""
    script = 'shift; "$@" >/dev/null 2>&1; exec head -c 1 "$0"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, then, "--", *command]
    ended = subprocess.run(words, capture_output=True, timeout=30, check=False)
    if ended.returncode or not ended.stdout:
        raise PermissionError(ended.stderr.decode(errors="replace"))


def _any_file_below(folder: str) -> None:
    if not any(files for _, _, files in os.walk(folder)):
        raise FileNotFoundError(folder)


def attempts(targets: dict[str, Any]) -> Iterator[tuple[str, Attempt]]:
    yield from of_files(targets["files"], targets["home"])
    yield from of_sockets(targets["sockets"])
    yield from of_processes(targets["processes"])
    yield from of_rights(targets["data"], targets["secret"])


def seen(targets: dict[str, Any]) -> dict[str, Any]:
    """What lies about: nothing of it may be of another's."""
    processes = [Path("/proc", entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "owners": sorted({process.stat().st_uid for process in processes if process.exists()}),
        "shared": {folder: sorted(os.listdir(folder)) for folder in ("/tmp", "/var/tmp", "/dev/shm")},
        "memory": libc.shmget(targets["memory_key"], 0, 0) >= 0,
        "descriptors": sorted({target for process in processes for target in _descriptors(process)}),
        "environment": sorted(os.environ),
        "data": sorted(str(path.relative_to(targets["data"])) for path in _below(Path(targets["data"]))),
    }


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink() and len(path.parts) - len(folder.parts) < 3:
            with suppress(PermissionError):
                yield from _below(path)


def _descriptors(process: Path) -> Iterator[str]:
    try:
        for entry in (process / "fd").iterdir():
            yield os.readlink(entry)
    except OSError:
        pass


def main() -> None:
    targets = json.loads(Path(sys.argv[1]).read_text())
    succeeded = []
    for name, attempt in attempts(targets):
        try:
            attempt()
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                succeeded.append(f"{name}: hangs")
        else:
            succeeded.append(name)
    # Left where the other site would find it.
    libc.shmget(targets["own_memory_key"], 4096, IPC_CREAT | IPC_EXCL | 0o666)
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        Path(folder, targets["mark"]).touch()
    print("TRIED " + json.dumps({"succeeded": succeeded, "seen": seen(targets)}))


if __name__ == "__main__":
    main()
