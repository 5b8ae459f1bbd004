"""Become the account of a site in a view of the server without other sites, and execute a program.

    python -I -S enter_site.py '{"uid": ..., "home": ..., ...}' PROGRAM ARGUMENT...

Started as root by a launcher, with the program's descriptors and environment; the process stays the same one, so
watching it is watching the program. What the program then sees:

- the data folder of the panel is empty except for the home of its account and the paths in `shown`: no other site's
  home, socket, log or secret;
- the whole server is read-only except for that home, and for /tmp, /var/tmp and /dev/shm, which are its own and empty
  at the start;
- /proc has the processes of its account alone, and there are no control groups to read those of others from;
- memory and queues shared by number (sysvipc(7)) are its own;
- no set-uid program gives it any rights;
- /usr/sbin/sendmail is the panel's, whether the server has one or not: another's would wait for rights that it never
  gets here. It is the server's own only if the panel sends no mail and that one can work here (`svc_webhost.mail`);
- parts of the kernel that no web application needs are denied (`seccomp.py`): user namespaces above all.

Invariant: everything is in place before the process changes to the account, and nothing that the account could have
placed is followed: its home is opened as a folder, and mount points are created in file systems that were empty before.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.confined import seccomp

_libc: Final = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS: Final = 0x0002_0000
_CLONE_NEWIPC: Final = 0x0800_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1 << 1, 1 << 2, 1 << 3
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_SYS_MOUNT_SETATTR: Final = 442
"""The number is the same on every architecture; the call exists since Linux 5.12."""
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 0x1, 0x2
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EMPTIED: Final = ("/home", "/root", "/media", "/mnt", "/run/user", "/run/dbus", "/run/svc-host", "/sys/fs/cgroup")
"""Hidden are people's files; systemd on the bus; and control groups, which show everybody's processes."""
_SBIN: Final = "/usr/sbin"
_SENDMAILS: Final = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_OWN: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - each gets a file system of its own
_OWN_SIZE: Final = "size=256m,nr_inodes=64k"
_OOM_SCORE, _OOM_SCORE_OF_COMMANDS = "500", "900"
"""If the whole server runs out of memory, programs of a site are killed before the services that all sites share. If a
site's group does, a build or a task is killed before the programs that serve the site's visitors."""
_FAILED: Final = 126


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def main(arguments: list[str]) -> int:
    wanted, command = json.loads(arguments[0]), arguments[1:]
    try:
        if wanted["log"] is not None:
            _say_into(wanted["log"], wanted["uid"])
        with open("/proc/self/oom_score_adj", "w") as file:
            # A command that runs to its end is killed together with its parent, so it has another OOM score. A service
            # has no such parent.
            file.write(_OOM_SCORE_OF_COMMANDS if wanted.get("ends_with_parent", False) else _OOM_SCORE)
        _see(wanted)
        _become(wanted)
        os.execve(command[0], command, os.environ)  # noqa: S606 - an argument list, and no shell is what is wanted
    except OSError as error:
        print(f"{command[0]} cannot be run for the site: {error}", file=sys.stderr)
    return _FAILED


def _say_into(pipe: str, uid: int) -> None:
    """Send the program's output to this pipe. The pipe is opened for reading too: so if nobody reads, the program
    waits, and is not killed (SIGPIPE). It belongs to the account, so that the program can open it again as
    /dev/stderr."""
    with suppress(FileExistsError):
        os.mkfifo(pipe, 0o600)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    os.fchown(descriptor, uid, uid)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _see(wanted: dict[str, Any]) -> None:
    """Hide the other sites. `home` is the account's, below `data`; except for it, only `shown` stays visible of `data`,
    read-only."""
    _checked(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC))
    # Mounts that are added on the server later appear here, but mounts made here do not appear on the server.
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    kept = [wanted["home"], *wanted["shown"]]
    # Opened before other mounts cover it. Links are refused: neither a home nor a path in `shown` is a link.
    opened = [os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) for path in kept]
    folders = [os.path.isdir(path) for path in kept]
    _cover_sendmail(wanted["shown"])
    for path in (*_EMPTIED, *_OWN, wanted["data"]):
        if path in _OWN:
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,{_OWN_SIZE}")
        elif path == wanted["data"] or os.path.isdir(path):
            # The path may have to be created again, because a mount over its parent has emptied that.
            os.makedirs(path, exist_ok=True)
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=64k")
    for path, descriptor, is_folder in zip(kept, opened, folders, strict=True):
        _place(path, is_folder=is_folder)
        _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND)
        os.close(descriptor)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "hidepid=invisible")
    _attributes("/", _MountAttributes(set=_ATTR_RDONLY | _ATTR_NOSUID), _AT_RECURSIVE)
    for path in (*_OWN, wanted["home"]):
        _attributes(path, _MountAttributes(clear=_ATTR_RDONLY), 0)


def _cover_sendmail(shown: list[str]) -> None:
    """Put the panel's sendmail over that of the server. A layer over the folder has effect even if the server has no
    sendmail yet, or if one is installed or replaced later; a mount on the file would not. Where the kernel has no such
    layers, the file is covered if there is one."""
    for path in shown:
        layer = os.path.join(path, "mail", "sbin")
        if os.path.isdir(layer):
            break
    else:
        return
    # The layer is named by its descriptor, because a path may contain the characters that separate layers.
    descriptor = os.open(layer, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        covered = ""
        # A mount would follow the link: on a server where /usr/sbin is a link to the folder of all programs, the layer
        # would cover that folder.
        if not os.path.islink(_SBIN):
            lower = f"lowerdir=/proc/self/fd/{descriptor}:{_SBIN}"
            with suppress(OSError):
                _mount("overlay", _SBIN, "overlay", _MS_NOSUID | _MS_NODEV, lower)
                covered = f"{_SBIN}/sendmail"
        for name in _SENDMAILS:
            # In Debian's packages, the other name is a link to the first, which is covered already.
            if os.path.exists(name) and os.path.realpath(name) != covered:
                _mount(f"/proc/self/fd/{descriptor}/sendmail", name, None, _MS_BIND)
    finally:
        os.close(descriptor)


def _place(path: str, *, is_folder: bool) -> None:
    """Create a mount point."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        # An existing file is left as it is: it may be a running program, which cannot be opened for writing.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _become(wanted: dict[str, Any]) -> None:
    uid, gid = wanted["uid"], wanted["gid"]
    if not uid or not gid:
        raise PermissionError("no program of a site runs as root")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if wanted["processes"] is not None:
        # RLIMIT_NPROC counts all processes of the account. So it also limits several programs of the site together,
        # although each is in a group of its own.
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted["processes"], wanted["processes"]))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    seccomp.install_filter()
    if wanted.get("ends_with_parent", False):
        # Set again, because the kernel clears it when the account changes.
        _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    os.chdir(wanted["folder"])
    # Restore the signals that Python ignores, as a new process expects.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _attributes(path: str, attributes: _MountAttributes, flags: int) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(_libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
