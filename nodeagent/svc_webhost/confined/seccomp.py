"""A filter of system calls (seccomp(2)) for the programs of a site, which cannot be removed once it is set.

It denies calls that no web application needs and in which unprivileged accounts have found holes: user namespaces, in
which an account is root over mounts, netlink and packet filters of its own; keyrings, BPF, io_uring, performance
counters, page faults in user space, and kinds of sockets whose modules the kernel loads on first use. Denied calls fail
with an error that programs can handle; only programs of another architecture (32 bits), whose calls have other numbers,
are killed.

Rejected: a list of allowed calls. It would have to be complete for every interpreter and library that a customer
brings, and be updated for each of their releases. To cover calls that are newer than this list as well, every number
above `_NEWEST` is "not implemented", which libraries are written for.

ptrace(2) stays: it reaches processes of the same account alone, and php-fpm's slow log and debuggers need it.

Loaded by `enter_site.py`, the standard library alone. The numbers are from asm/unistd_64.h and asm-generic/unistd.h.

Why: docs/decisions/0038-confinement-of-site-programs.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

_MACHINES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
"""For each machine type (uname(2)): the column of `_CALLS`, and the value of AUDIT_ARCH_*."""
_NEWEST: Final = 452
"""fchmodat2(2), of Linux 6.6."""

_CALLS: Final = {
    # Mounts, and operations on a whole file system.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # Entering namespaces of other processes.
    "setns": (308, 268),
    # Keyrings: they outlive processes, and are counted for the account.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Programs that run in the kernel, and ways to observe it.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    # Calls that concern the whole machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
"""System calls that are denied with EPERM, whatever their arguments. None: this machine type has no such call."""
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_UNSHARE: Final = (272, 97)
_IOCTL: Final = (16, 29)
_SOCKET: Final = (41, 198)
_SOCKETPAIR: Final = (53, 199)

_NEW_NAMESPACES: Final = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME: Final = 0x80
"""CLONE_NEWTIME is valid only for unshare(2): for clone(2) the same bit is a part of a signal's number."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""These ioctl requests type into a terminal in another user's name."""
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE_MASK, _SOCK_RAW = 0xF, 3
_PROTOCOLS: Final = (0, 1, 6, 17, 58)
"""Allowed are the default protocol, ICMP, TCP, UDP and ICMPv6. Others would make the kernel load their modules."""
_NETLINK_ROUTE: Final = 0
"""Allowed because getifaddrs(3) and getaddrinfo(3) use it to list network addresses."""

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data."""
_ALLOW: Final = 0x7FFF_0000
_KILL_PROCESS: Final = 0x8000_0000
_ERRNO: Final = 0x0005_0000

Instruction = tuple[int, int, int, int]
"""The fields code, jt, jf and k of struct sock_filter (linux/filter.h)."""
Block = list[Instruction]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter() -> None:
    """Install the filter for this process and its descendants. Requires no_new_privs (prctl(2)). Raises `OSError` if
    the kernel does not support such filters, or if the system call numbers of this architecture are not known."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known")
    instructions = b"".join(struct.pack("=HBBI", *each) for each in program(machine))
    given = _Program(len(instructions) // 8, instructions)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(given), 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel takes no filter of system calls: {os.strerror(number)}")


def program(machine: str) -> Block:
    column, architecture = _MACHINES[machine]
    refused = [number for numbers in _CALLS.values() if (number := numbers[column]) is not None]
    return [
        _load(_ARCHITECTURE),
        *_unless(_JUMP_EQUAL, architecture, [_return(_KILL_PROCESS)]),
        _load(_NUMBER),
        # The numbers of the x32 ABI are higher than all others.
        *_when(_JUMP_ABOVE, _NEWEST, [_fails(errno.ENOSYS)]),
        # clone3 has its flags in memory, where another thread could change them after a check. It is refused as
        # unknown, and libraries then use clone.
        *_equal(_CLONE3[column], [_fails(errno.ENOSYS)]),
        *_equal(_SOCKET[column], _socket()),
        *_equal(_SOCKETPAIR[column], [_argument(0), *_equal(_AF_UNIX, [_ALLOWED]), _fails(errno.EAFNOSUPPORT)]),
        *_equal(_IOCTL[column], [_argument(1), *_refused(_TIOCSTI, _TIOCLINUX), _ALLOWED]),
        *_equal(_CLONE[column], [_argument(0), *_when(_JUMP_ANY, _NEW_NAMESPACES, [_EPERM]), _ALLOWED]),
        *_equal(_UNSHARE[column], [_argument(0), *_when(_JUMP_ANY, _NEW_NAMESPACES | _NEW_TIME, [_EPERM]), _ALLOWED]),
        *_refused(*refused),
        _ALLOWED,
    ]


def _socket() -> Block:
    internet = [
        _argument(1),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        *_when(_JUMP_ABOVE, _SOCK_RAW, [_fails(errno.ESOCKTNOSUPPORT)]),
        _argument(2),
        *[each for protocol in _PROTOCOLS for each in _equal(protocol, [_ALLOWED])],
        _fails(errno.EPROTONOSUPPORT),
    ]
    netlink = [_argument(2), *_equal(_NETLINK_ROUTE, [_ALLOWED]), _fails(errno.EPROTONOSUPPORT)]
    return [
        _argument(0),
        *_equal(_AF_UNIX, [_ALLOWED]),
        *_equal(_AF_INET, internet),
        *_equal(_AF_INET6, internet),
        *_equal(_AF_NETLINK, netlink),
        _fails(errno.EAFNOSUPPORT),
    ]


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _argument(index: int) -> Instruction:
    """Load an argument's lower half: the kernel uses only this half of these arguments. It comes first, since both
    machines are little-endian."""
    return _load(_ARGUMENTS + 8 * index)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _fails(number: int) -> Instruction:
    return _return(_ERRNO | number)


def _when(jump: int, value: int, block: Block) -> Block:
    """Run `block` under a condition. `block` ends with a return, so the code after it runs only if the condition does
    not hold."""
    return [(jump, 0, len(block), value), *block]


def _unless(jump: int, value: int, block: Block) -> Block:
    return [(jump, len(block), 0, value), *block]


def _equal(value: int, block: Block) -> Block:
    return _when(_JUMP_EQUAL, value, block)


def _refused(*values: int) -> Block:
    return [each for value in values for each in _equal(value, [_EPERM])]


_ALLOWED: Final = _return(_ALLOW)
_EPERM: Final = _fails(errno.EPERM)
