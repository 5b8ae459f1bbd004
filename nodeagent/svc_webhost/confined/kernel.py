"""System calls that Python does not offer: openat2(2), renameat2(2), prctl(2) and Landlock (landlock(7))."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)

# These system calls have the same numbers on every architecture, because they are newer than the kernel's common table
# of numbers.
_SYS_OPENAT2: Final = 437
_SYS_LANDLOCK_CREATE_RULESET: Final = 444
_SYS_LANDLOCK_ADD_RULE: Final = 445
_SYS_LANDLOCK_RESTRICT_SELF: Final = 446

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08

_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38

_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
LOWEST_ABI: Final = 2
"""The lowest usable version of Landlock: its first version denies every rename from one folder into another."""
_RACES: Final = 64
"""How often a lookup is repeated if a parent of the path was renamed during it (openat2(2), EAGAIN)."""

_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _MAKE_SYM, _REFER, _TRUNCATE = 1 << 7, 1 << 8, 1 << 12, 1 << 13, 1 << 14
_ALLOWED: Final = (
    _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE
    | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER | _TRUNCATE
)  # fmt: skip
"""The rights that are allowed below the root. Running programs and creating devices, sockets and pipes are handled as
well, but allowed nowhere."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def open_beneath(folder: int, path: bytes, flags: int, mode: int = 0, *, follow: bool = True) -> int:
    """Open `path` relative to the descriptor `folder`. However the path is written, and whatever is swapped meanwhile,
    it cannot lead out of that folder: OSError EXDEV. With `follow` False a link anywhere in the path is an OSError,
    too: ELOOP."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    if not follow:
        how.resolve |= RESOLVE_NO_SYMLINKS
    for _ in range(_RACES):
        try:
            return _checked(
                _libc.syscall(_SYS_OPENAT2, folder, path, ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
            )
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def rename(source: int, old: bytes, target: int, new: bytes, *, replace: bool) -> None:
    _checked(_libc.renameat2(source, old, target, new, 0 if replace else _RENAME_NOREPLACE))


def exchange(source: int, old: bytes, target: int, new: bytes) -> None:
    """Swap two entries, in one step."""
    _checked(_libc.renameat2(source, old, target, new, _RENAME_EXCHANGE))


def refuse_new_privileges() -> None:
    """Set-uid programs give no rights from now on, and processes of the same account cannot inspect this one."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 if it has none."""
    version: int = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)
    return max(version, 0)


def landlock(root: int, abi: int) -> None:
    """From now on this thread, and those it starts, can only open files below `root`; from version 4 on they can
    neither listen nor connect by TCP, from 6 on they cannot signal processes outside."""
    _landlock([(root, _ALLOWED)], abi)


def landlock_reading(readable: Sequence[int], executable: Sequence[int], abi: int) -> None:
    """From now on this thread, and those it starts, write no files, read only below `readable`, and execute only the
    files `executable`: a program and its interpreter, which loads it. TCP and signals are as for `landlock`."""
    _landlock(
        [
            *((descriptor, _READ_FILE | _READ_DIR) for descriptor in readable),
            *((descriptor, _READ_FILE | _EXECUTE) for descriptor in executable),
        ],
        abi,
    )


def _landlock(allowed: Sequence[tuple[int, int]], abi: int) -> None:
    handled = 0x1FFF | _REFER
    if abi >= 3:
        handled |= _TRUNCATE
    if abi >= 5:
        handled |= 1 << 15  # The right for ioctl on devices.
    rules = _Ruleset(handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _checked(_libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0))
    try:
        for descriptor, rights in allowed:
            beneath = _PathBeneath(rights & handled, descriptor)
            _checked(_libc.syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0))
        _checked(_libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
