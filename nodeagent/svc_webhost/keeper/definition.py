"""The definition of a service as requests and state files carry it, checked before anything is done.

The launcher's dataclasses were not reused here: the keeper imports the standard library only. `launcher_keeper.wire`
and `parse` are held together by tests/webhost/keeper/test_definition.py.
"""

from __future__ import annotations

import grp
import os
import pwd
import signal
import stat
from ipaddress import ip_address
from typing import NamedTuple

_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
# The name is used for a file (NAME.json) and a control group: so it contains no dot and no slash, and is much shorter
# than 255 bytes.
_LONGEST_NAME = 64
# Seconds. The launcher waits 600 s for a stop, and 30 s more for the answer.
_LONGEST_STOP = 600.0


class RefusedError(Exception):
    """The request is refused; nothing was changed. The message goes to the caller."""


class Socket(NamedTuple):
    path: str
    mode: int
    owner: str
    group: str
    variable: str
    form: str


class Port(NamedTuple):
    address: str
    port: int
    variable: str
    form: str


class Limits(NamedTuple):
    """The limits of a service. None: no limit."""

    cpu_percent: int | None
    memory_mib: int | None
    processes: int | None


class Definition(NamedTuple):
    """A service that is ensured with an equal definition is left alone."""

    name: str
    command: tuple[str, ...]
    user: str
    group: str
    environment: dict[str, str]
    sockets: tuple[Socket, ...]
    ports: tuple[Port, ...]
    nonblocking: bool
    limits: Limits
    log: str | None
    stop_signal: int
    stop_seconds: float
    umask: int
    on_demand: bool
    limit_group: str | None
    """The group whose limits apply to all of its services together."""

    @property
    def listening(self) -> tuple[Socket | Port, ...]:
        """Sockets and ports in the order of their descriptors, from 3 on."""
        return (*self.sockets, *self.ports)


def parse(given: object) -> Definition:
    """The definition in decoded JSON with exactly the members that `launcher_keeper.wire` writes. Raises `RefusedError`
    if one is missing, unknown or of another type."""
    fields = _members(
        given,
        *("name", "command", "user", "group", "environment", "sockets", "ports", "nonblocking", "limits"),
        *("log", "stop_signal", "stop_seconds", "umask", "on_demand", "limit_group"),
    )
    environment = fields["environment"]
    if not isinstance(environment, dict):
        raise RefusedError("The environment is not an object.")
    for variable in environment:
        _plain(variable, "A variable's name")
        if not variable or "=" in variable:
            raise RefusedError(f"{variable!r} is no name of a variable.")
    nonblocking = fields["nonblocking"]
    if not isinstance(nonblocking, bool):
        raise RefusedError("Whether its sockets are not waited for is neither true nor false.")
    on_demand = fields["on_demand"]
    if not isinstance(on_demand, bool) or (on_demand and not fields["sockets"]):
        raise RefusedError("A service on demand needs a socket that starts it.")
    command = tuple(_plain(word, "A word of the command") for word in _list(fields["command"], "The command"))
    # PATH is not searched: execve(2) takes the program exactly as named.
    if not command or not command[0].startswith("/"):
        raise RefusedError("The command does not start with the absolute path of a program.")
    return Definition(
        name=checked_name(fields["name"]),
        command=command,
        user=_plain(fields["user"], "The user"),
        group=_plain(fields["group"], "The group"),
        environment={variable: _plain(value, f"The value of {variable}") for variable, value in environment.items()},
        sockets=tuple(_socket(one) for one in _list(fields["sockets"], "The sockets")),
        ports=tuple(_port(one) for one in _list(fields["ports"], "The ports")),
        nonblocking=nonblocking,
        limits=parse_limits(fields["limits"]),
        log=None if fields["log"] is None else _absolute(fields["log"], "The log"),
        stop_signal=signal.Signals(_whole(fields["stop_signal"], "The stop signal", signal.NSIG - 1)),
        stop_seconds=_seconds(fields["stop_seconds"]),
        umask=_whole(fields["umask"], "The mask of its files", 0o777),
        on_demand=on_demand,
        limit_group=None if fields["limit_group"] is None else checked_name(fields["limit_group"]),
    )


def parse_limits(given: object) -> Limits:
    fields = _members(given, *Limits._fields)
    return Limits(*(_limit(fields[name]) for name in Limits._fields))


def wire(definition: Definition) -> dict[str, object]:
    """The JSON that `parse` reads."""
    fields = definition._asdict()
    fields["sockets"] = [one._asdict() for one in definition.sockets]
    fields["ports"] = [one._asdict() for one in definition.ports]
    fields["limits"] = definition.limits._asdict()
    return fields


def checked_name(given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_NAME or not _NAME.issuperset(given):
        raise RefusedError("A service's name is of lower case letters, digits and dashes.")
    return given


def check(definition: Definition) -> None:
    """Refuses a missing program, account or folder. Called before the old process is stopped, so that the old process
    continues if the new definition is refused."""
    program = definition.command[0]
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise RefusedError(f"{program} is not a program that can be executed.")
    accounts(definition.user, definition.group)
    if definition.log is not None and not os.path.isdir(os.path.dirname(definition.log)):
        raise RefusedError(f"There is no folder for {definition.log}.")
    for socket in definition.sockets:
        accounts(socket.owner, socket.group)
        owned_by_root(os.path.dirname(socket.path))


def accounts(user: str, group: str) -> tuple[int, int]:
    """The uid and the gid."""
    try:
        return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise RefusedError(f"There is no user {user} or no group {group} on this server.") from error


def owned_by_root(folder: str) -> None:
    """Refuses a folder that others may write to: they could swap what a path there means between two system calls, and
    have root unlink or chown a file of their choice."""
    try:
        found = os.stat(folder)
    except OSError as error:
        raise RefusedError(f"{folder}: {error.strerror}.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedError(f"{folder} is not a folder that root alone may change.")


def _socket(given: object) -> Socket:
    fields = _members(given, "path", "mode", "owner", "group", "variable", "form")
    return Socket(
        path=_absolute(fields["path"], "The path of a socket"),
        mode=_whole(fields["mode"], "The mode of a socket", 0o777),
        owner=_plain(fields["owner"], "The owner of a socket"),
        group=_plain(fields["group"], "The group of a socket"),
        variable=_plain(fields["variable"], "The variable of a socket"),
        form=_plain(fields["form"], "The form of a socket"),
    )


def _port(given: object) -> Port:
    fields = _members(given, "address", "port", "variable", "form")
    address = _plain(fields["address"], "The address of a port")
    try:
        ip_address(address)
    except ValueError:
        raise RefusedError(f"{address!r} is no address of this server.") from None
    port = _whole(fields["port"], "The number of a port", 65_535)
    return Port(
        address=address,
        port=port,
        variable=_plain(fields["variable"], "The variable of a port"),
        form=_plain(fields["form"], "The form of a port"),
    )


def _members(given: object, *names: str) -> dict[str, object]:
    # Unknown members are refused: if a limit that a later release adds were ignored, it would not be enforced, and
    # nobody would notice.
    if not isinstance(given, dict) or given.keys() != set(names):
        raise RefusedError(f"Expected an object with exactly {', '.join(names)}.")
    return given


def _list(given: object, what: str) -> list[object]:
    if not isinstance(given, list):
        raise RefusedError(f"{what} is not a list.")
    return given


def _plain(given: object, what: str) -> str:
    # A NUL character would end the text early in execve(2) and in paths.
    if not isinstance(given, str) or "\0" in given:
        raise RefusedError(f"{what} is not a text without NUL.")
    return given


def _absolute(given: object, what: str) -> str:
    path = _plain(given, what)
    if not path.startswith("/") or os.path.normpath(path) != path:
        raise RefusedError(f"{what} is not an absolute path: {path!r}.")
    return path


def _whole(given: object, what: str, highest: int) -> int:
    # Not isinstance(), because JSON's true and false are instances of int in Python.
    if type(given) is not int or not 0 < given <= highest:
        raise RefusedError(f"{what} is not a number from 1 to {highest}.")
    return given


def _limit(given: object) -> int | None:
    # 2**40 MiB are 2**60 bytes, which setrlimit(2) and the control groups hold in 64 bits.
    return None if given is None else _whole(given, "A limit", 1 << 40)


def _seconds(given: object) -> float:
    # Converted by way of a string: an int beyond the range of float becomes inf, which is refused, instead of raising
    # OverflowError.
    if type(given) not in (int, float) or not 0 <= float(str(given)) <= _LONGEST_STOP:
        raise RefusedError(f"The time to stop is not a number of seconds up to {_LONGEST_STOP:.0f}.")
    return float(str(given))
