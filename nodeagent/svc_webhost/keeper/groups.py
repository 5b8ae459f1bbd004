"""All processes of a service as one group: limited together, and killed together.

A group is a control group in every hierarchy that helps: in cgroup v2 to list and kill the processes, and for limits in
v2 if it has the controllers, otherwise in v1. Where no hierarchy can be written to (a container), the group is the
session of the program, and the limits are those of setrlimit(2): `weaker` says what that loses.

Rejected: setrlimit(2) for commands of sites, as it was. Memory in memfd_create(2), in shared maps and in the tmpfs of
the view was counted nowhere, and the limit of the processor did not hold at all. They join a group now (`join`).
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
from contextlib import suppress

from svc_webhost.keeper.definition import Definition, Limits

_PERIOD = 100_000
"""Microseconds: the kernel's default period of processor quotas."""
_MIB = 1 << 20

_CONTROLLERS = ("memory", "pids", "cpu")
_OURS = "svc-keeper-"
_TOGETHER = "limit_groups"
"""The parent of all limit groups. In v2 siblings share the processor equally. So the web server, whose group is next to
this one, gets as much as all sites together; if the sites' groups were its siblings, it would get a hundredth of the
processor among a hundred busy sites. No service has this name, because it contains an underscore."""
_COMMANDS = "commands"
"""The group beneath a limit group for processes that have joined it and are no service. No service has this name,
because services' names contain a dash."""


def _v2(controller: str, limit: int | None) -> list[tuple[str, str]]:
    """The files to write, with their values. None: no limit."""
    if controller == "memory":
        # A group with a memory limit gets no swap: otherwise it could use the limit in memory and in addition any
        # amount of swap.
        swap = "max" if limit is None else "0"
        return [("memory.max", "max" if limit is None else str(limit * _MIB)), ("memory.swap.max", swap)]
    if controller == "pids":
        return [("pids.max", "max" if limit is None else str(limit))]
    return [("cpu.max", f"{'max' if limit is None else limit * _PERIOD // 100} {_PERIOD}")]


def _v1(controller: str, limit: int | None) -> list[tuple[str, str]]:
    if controller == "memory":
        size = "-1" if limit is None else str(limit * _MIB)
        # memory.memsw counts memory and swap together, and must not be below the limit of memory. To lower both limits,
        # memory has to be written first; to raise both, memsw. So memory is written before memsw, which may fail, and
        # again after it.
        tried, sure = "memory.limit_in_bytes?", "memory.limit_in_bytes"
        return [(tried, size), ("memory.memsw.limit_in_bytes", size), (sure, size)]
    if controller == "pids":
        return [("pids.max", "max" if limit is None else str(limit))]
    quota = "-1" if limit is None else str(limit * _PERIOD // 100)
    return [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", quota)]


_OPTIONAL = {"memory.swap.max", "memory.memsw.limit_in_bytes", "memory.limit_in_bytes?"}
"""Files whose writing may fail: they do not exist if the kernel does not account swap, or are written again later."""


class Group:
    def __init__(self, folders: list[str] | None = None, session: int = 0, weaker: list[str] | None = None) -> None:
        self.folders = folders or []
        """The control groups; the first one lists the processes. Empty: the session serves as the group."""
        self.session = session
        """The process id of the program, which is also its session; 0 before its start."""
        self.rlimits: dict[int, int] = {}
        self.weaker = weaker or []
        """In words, the limits that apply only in part or not at all."""

    def join(self, pid: int) -> None:
        self.session = pid
        for folder in self.folders:
            _write(f"{folder}/cgroup.procs", str(pid))

    def processes(self) -> list[int]:
        if self.folders:
            try:
                return [int(line) for line in _read(f"{self.folders[0]}/cgroup.procs").split()]
            except FileNotFoundError:
                # The group was removed already, or it was recorded before the server was booted.
                return []
        return [] if self.session == 0 else [pid for pid in _all() if _session_of(pid) == self.session]

    def kill(self) -> None:
        """Send SIGKILL to every process; whether they have ended is seen by `processes`."""
        for folder in self.folders:
            # From here on no process can fork: otherwise a fork bomb could be faster than the kills.
            if os.path.exists(f"{folder}/pids.max"):
                _write(f"{folder}/pids.max", "0")
        if self.folders and os.path.exists(f"{self.folders[0]}/cgroup.kill"):
            _write(f"{self.folders[0]}/cgroup.kill", "1")
            return
        # For v1, for a session, and for v2 before Linux 5.14. The caller repeats this until `processes` is empty.
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Removes the control groups, which must be empty."""
        for folder in self.folders:
            with suppress(FileNotFoundError):
                os.rmdir(folder)
            _remove_above(folder)


class Hierarchies:
    """The control groups of this server, and this keeper's own place in them, named by its data folder."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._v2: str | None = None
        self._v1: dict[str, str] = {}
        self._joined: dict[str, list[str]] = {}
        """The folders of commands by their group, for `_sweep`. Those of an earlier keeper are added when a command
        joins the group again."""
        own = {}
        for line in _read("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            own[controllers] = path.rstrip("/")
        for line in _read("/proc/self/mounts").splitlines():
            _, folder, kind, options, *_ = line.split(" ")
            if kind == "cgroup2":
                # The groups are created at the top and not beneath the keeper's own group: in v2 a group that contains
                # processes cannot have children with controllers.
                self._v2 = folder
            elif kind == "cgroup":
                for controllers, path in own.items():
                    if controllers and set(controllers.split(",")) <= set(options.split(",")):
                        # v1 has no such rule, so the groups are created beneath the keeper's own: limits of the keeper
                        # then apply to its services, too.
                        self._v1 |= dict.fromkeys(controllers.split(","), f"{folder}{path}")

    def group(self, definition: Definition) -> Group:
        """The control group, created if needed, with the limits of the definition."""
        group = Group()
        wanted = _by_controller(definition.limits)
        if definition.limit_group is not None:
            return self._within(definition, definition.limit_group, wanted)
        limits = {controller: limit for controller, limit in wanted.items() if limit is not None}
        if self._v2 is not None:
            folder = self._folder(self._v2, definition.name, [*limits])
            if folder is not None:
                group.folders.append(folder)
                limits = {c: limit for c, limit in limits.items() if not _bounded(folder, _v2(c, limit))}
        for controller in [one for one in _CONTROLLERS if one in self._v1]:
            # Without v2, the group of "pids" is used to list the processes, so it is created even if their number is
            # not limited.
            if controller in limits or (controller == "pids" and not group.folders):
                folder = self._folder(self._v1[controller], definition.name)
                if folder is not None:
                    group.folders.append(folder)
                    if controller in limits and _bounded(folder, _v1(controller, limits[controller])):
                        del limits[controller]
        for controller, limit in limits.items():
            _by_rlimit(group, controller, limit)
        return group

    def _within(self, definition: Definition, together: str, wanted: dict[str, int | None]) -> Group:
        """The group `together`, whose limits apply to the service and others together. It is created in every
        hierarchy, even without a limit there: `limit` may set one later, while the service runs."""
        group = Group()
        name = f"{_TOGETHER}/{together}/{definition.name}"
        legacy = [self._v1[controller] for controller in _CONTROLLERS if controller in self._v1]
        for hierarchy in dict.fromkeys([*([] if self._v2 is None else [self._v2]), *legacy]):
            folder = self._folder(hierarchy, name, [*_CONTROLLERS] if hierarchy == self._v2 else None)
            if folder is not None:
                group.folders.append(folder)
        for controller in self.limit(together, definition.limits):
            limit = wanted[controller]
            if limit is not None:
                _by_rlimit(group, controller, limit)
        return group

    def join(self, together: str, limits: Limits | None, pid: int) -> list[str]:
        """Moves the process into the limit group; all that it starts is in it as well. Memory that is in no process's
        own size (memfd_create(2), shared maps, the tmpfs of its view) is counted too. `limits`: None leaves those that
        the group has. Returns the controllers that this server lacks."""
        # There is no event for the end of a group's last command, so the next command of another group removes the
        # empty groups.
        self._sweep(together)
        name = f"{_TOGETHER}/{together}/{_COMMANDS}"
        legacy = [self._v1[controller] for controller in _CONTROLLERS if controller in self._v1]
        folders = [
            folder
            for hierarchy in dict.fromkeys([*([] if self._v2 is None else [self._v2]), *legacy])
            if (folder := self._folder(hierarchy, name, [*_CONTROLLERS] if hierarchy == self._v2 else None)) is not None
        ]
        missing = [] if limits is None else self.limit(together, limits)
        for folder in folders:
            _write(f"{folder}/cgroup.procs", str(pid))
        self._joined[together] = folders
        return missing

    def _sweep(self, but: str) -> None:
        """Removes the groups of commands that have ended. (When a service ends, its own limit group is removed at
        once.)"""
        for together in [each for each in self._joined if each != but]:
            for folder in self._joined[together]:
                # rmdir(2) also is the check: the kernel refuses it while a process is in the group.
                with suppress(OSError):
                    os.rmdir(folder)
                _remove_above(folder)
            if not any(os.path.exists(folder) for folder in self._joined[together]):
                del self._joined[together]

    def limit(self, together: str, limits: Limits) -> list[str]:
        """Sets the limits of a group, for what runs in it as well. Returns the controllers that this server lacks."""
        missing = []
        for controller, limit in _by_controller(limits).items():
            inside = f"{_OURS}{self._place}/{_TOGETHER}/{together}"
            unified, legacy = f"{self._v2}/{inside}", f"{self._v1.get(controller, '')}/{inside}"
            held = self._v2 is not None and _bounded(unified, _v2(controller, limit))
            if not held and not (controller in self._v1 and _bounded(legacy, _v1(controller, limit))):
                missing.append(controller)
        return missing

    def _folder(self, hierarchy: str, name: str, controllers: list[str] | None = None) -> str | None:
        folder = f"{hierarchy}/{_OURS}{self._place}/{name}"
        *above, _ = itertools.accumulate([hierarchy, f"{_OURS}{self._place}", *name.split("/")], os.path.join)
        try:
            _read(f"{hierarchy}/cgroup.procs")
            os.makedirs(folder, mode=0o755, exist_ok=True)
        except OSError:
            # The hierarchy is read-only, as in many containers, or hidden beneath another mount, so that it has no
            # cgroup.procs.
            return None
        for controller in controllers or []:
            for parent in above:
                try:
                    _write(f"{parent}/cgroup.subtree_control", f"+{controller}")
                except OSError:
                    break
        return folder


def _remove_above(folder: str) -> None:
    """Removes the parents of a group, up to the keeper's own or to the first that is not empty."""
    with suppress(OSError):
        while not os.path.basename(folder).startswith(_OURS):
            folder = os.path.dirname(folder)
            with suppress(OSError):
                os.rmdir(f"{folder}/{_COMMANDS}")
            os.rmdir(folder)


def _by_controller(limits: Limits) -> dict[str, int | None]:
    return {"memory": limits.memory_mib, "pids": limits.processes, "cpu": limits.cpu_percent}


def _bounded(folder: str, settings: list[tuple[str, str]]) -> bool:
    for name, value in settings:
        try:
            _write(f"{folder}/{name.removesuffix('?')}", value)
        except OSError:
            if name not in _OPTIONAL:
                return False
    return True


def _by_rlimit(group: Group, controller: str, limit: int) -> None:
    # The last resort: without an rlimit there would be no limit at all. `weaker` reports it to the operator in any
    # case.
    if controller == "memory":
        group.rlimits[resource.RLIMIT_AS] = limit * _MIB
        group.weaker.append("memory: a limit of each process alone, this server has no control groups for it")
    elif controller == "pids":
        group.rlimits[resource.RLIMIT_NPROC] = limit
        group.weaker.append("processes: a limit of the user and none for root, this server has no control groups")
    else:
        group.weaker.append("processor: no limit, this server has no control groups for it")


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session_of(pid: int) -> int:
    """0 for a process that has ended."""
    fields = stat_fields(pid)
    return 0 if fields is None or fields[0] in ("Z", "X") else int(fields[3])


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, which is field 3 of proc(5). None: no process."""
    # Split after the last bracket: the program's name comes before it, is chosen by the program, and may contain
    # brackets and spaces.
    try:
        return _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, value: str) -> None:
    """Write into an existing file. Without O_CREAT, a missing control file is an error, and no new file is created."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
