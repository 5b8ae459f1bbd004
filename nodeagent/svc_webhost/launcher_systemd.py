"""The launcher for servers with systemd as the first process: a service is a unit, its listening sockets a socket unit.

The units are written below /run: they last for this boot, and each boot's core ensures them anew. The environment may
hold secrets, and anybody may read a unit: so it is in a file of root's. For the directives in the units see
`systemd.exec(5)`, `systemd.service(5)` and `systemd.socket(5)` of systemd 252.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import trio

from svc_webhost.launcher import (
    GroupName,
    LauncherError,
    Limits,
    ListeningPort,
    ListeningSocket,
    Service,
    ServiceName,
    ServiceStatus,
)

_PREFIX = "svc-host-"
_SLICE = "svc-"
"""The prefix of a slice, followed by the group's name: `svc-site-1001.slice` is below `svc-site.slice`, which is below
`svc.slice`."""
_SCOPE = "/usr/bin/systemd-run"
_WITHIN = 60.0
_FIRST_DESCRIPTOR = 3

_OF_SYSTEMD = {
    *("PATH", "HOME", "LOGNAME", "USER", "SHELL", "TERM", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID"),
    *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"),
    *("LANG", "LANGUAGE", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE", "LC_MONETARY", "LC_MESSAGES"),
    *("LC_PAPER", "LC_NAME", "LC_ADDRESS", "LC_TELEPHONE", "LC_MEASUREMENT", "LC_IDENTIFICATION"),
}
"""Variables that systemd adds by itself; a service must have only those of its definition."""

_EXITED, _KILLED, _DUMPED = "1", "2", "3"
"""Values of ExecMainCode, which is si_code of waitid(2)."""


class SystemdLauncher:
    """`root` and `enter` are for the systemd of another namespace: its file system as seen here, and the start of a
    command that runs in its namespaces."""

    def __init__(self, *, root: Path = Path("/"), enter: Sequence[str] = ()) -> None:
        self._root = root
        self._enter = tuple(enter)
        self._units = root / "run/systemd/system"
        self._environments = root / "run/svc-host"
        self._one_at_a_time: defaultdict[ServiceName, trio.Lock] = defaultdict(trio.Lock)

    async def ensure(self, service: Service) -> ServiceStatus:
        unit, listening = _unit(service.name), _socket_unit(service.name)
        async with self._one_at_a_time[service.name]:
            await self._check(service)
            # Files that were written but not loaded by systemd do not describe the running service.
            pending = self._pending(service.name)
            left = pending.exists()
            sockets_changed = left or self._differs(self._units / listening, _socket_text(service))
            changed = left or self._differs(self._units / unit, _service_text(service))
            changed |= self._differs(self._environment_file(service.name), _environment_text(service))
            if sockets_changed:
                # Sockets cannot be changed while a process holds them, so the service is ended first.
                await self._end(service.name)
            if sockets_changed or changed:
                self._environments.mkdir(mode=0o700, exist_ok=True)
                pending.touch()
                self._write(service)
            if service.limit_group is not None:
                # The limits are set after the unit exists: if they were set earlier, a concurrent stop of the group's
                # last service would discard them.
                await self.limit(service.limit_group, service.limits)
            if sockets_changed or changed:
                await self._systemctl("daemon-reload")
            if service.listening:
                await self._start_sockets(service)
            # systemctl returns once the program was executed (Type=exec), or could not be.
            if not service.on_demand:
                await self._systemctl("restart" if changed else "start", unit, longer=service.stop_seconds)
            elif changed:
                await self._systemctl("try-restart", unit, longer=service.stop_seconds)
            pending.unlink(missing_ok=True)
            return await self.status(service.name)

    async def _start_sockets(self, service: Service) -> None:
        try:
            await self._systemctl("start", _socket_unit(service.name))
        except LauncherError as error:
            if not service.ports:
                raise
            ports = " or ".join(_at(one) for one in service.ports)
            raise LauncherError(f"{error} Another program may listen at {ports}.") from error

    async def limit(self, group: GroupName, limits: Limits) -> None:
        async with self._one_at_a_time[ServiceName(group)]:
            text = _limits_text(limits)
            if self._differs(self._limits_file(group), text):
                # If the slice does not exist yet, these become its initial limits.
                await self._systemctl("set-property", "--runtime", _slice(group), *text.split())
                self._environments.mkdir(mode=0o700, exist_ok=True)
                self._limits_file(group).write_text(text)

    async def reload(self, name: ServiceName) -> None:
        await self._systemctl("kill", "--kill-who=main", "--signal=SIGHUP", _unit(name))

    async def restart(self, name: ServiceName) -> None:
        async with self._one_at_a_time[name]:
            if (self._units / _unit(name)).exists():
                await self._systemctl("try-restart", _unit(name), longer=600.0)

    async def stop_idle(self, name: ServiceName) -> None:
        async with self._one_at_a_time[name]:
            if (self._units / _unit(name)).exists():
                # Only the service is stopped; the socket unit keeps listening.
                await self._systemctl("stop", _unit(name), longer=600.0)

    async def stop(self, name: ServiceName) -> None:
        async with self._one_at_a_time[name]:
            if not (self._units / _unit(name)).exists():
                return
            await self._end(name)
            found = re.search("^Slice=(.*)$", (self._units / _unit(name)).read_text(), re.MULTILINE)
            slice_ = None if found is None else found[1]
            for path in (self._units / _unit(name), self._units / _socket_unit(name), self._environment_file(name)):
                path.unlink(missing_ok=True)
            self._pending(name).unlink(missing_ok=True)
            await self._systemctl("daemon-reload")
            if slice_ is not None:
                await self._forget_slice(slice_)

    async def status(self, name: ServiceName) -> ServiceStatus:
        if not (self._units / _unit(name)).exists():
            return ServiceStatus(running=False)
        wanted = "SubState,MainPID,ExecMainStartTimestamp,NRestarts,ExecMainCode,ExecMainStatus"
        shown = await self._systemctl("show", "--timestamp=unix", f"--property={wanted}", _unit(name))
        now = dict(line.split("=", 1) for line in shown.splitlines())
        running = now["SubState"] == "running"
        return ServiceStatus(
            running=running,
            pid=int(now["MainPID"]) if running else None,
            since=datetime.fromtimestamp(int(now["ExecMainStartTimestamp"].removeprefix("@")), UTC)
            if running
            else None,
            restarts=int(now["NRestarts"]),
            last_exit=_exit(now["ExecMainCode"], now["ExecMainStatus"]),
            weaker_limits=self._weaker(name),
        )

    async def processes(self) -> Mapping[ServiceName, int]:
        units = await self._shown("SubState", "MainPID")
        return {name: int(unit["MainPID"]) for name, unit in units.items() if unit["SubState"] == "running"}

    async def restarts(self) -> Mapping[ServiceName, int]:
        return {name: int(unit["NRestarts"]) for name, unit in (await self._shown("NRestarts")).items()}

    async def _shown(self, *properties: str) -> Mapping[ServiceName, Mapping[str, str]]:
        """The properties of each service that systemd has loaded."""
        shown = await self._systemctl("show", f"--property={','.join(('Id', *properties))}", f"{_PREFIX}*.service")
        units = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.split("\n\n") if unit.strip()]
        return {ServiceName(unit["Id"].removeprefix(_PREFIX).removesuffix(".service")): unit for unit in units}

    async def names(self) -> frozenset[ServiceName]:
        """Every service that any core has ensured and not stopped."""
        units = self._units.glob(f"{_PREFIX}*.service")
        return frozenset(ServiceName(path.stem.removeprefix(_PREFIX)) for path in units)

    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        """A scope in the group's slice, which the process itself requests from systemd before it executes the program.
        The scope gets the limits as well: so it keeps them if the slice loses its limits, which happens when its last
        service ends."""
        own: list[str] = []
        if limits is not None:
            await self.limit(group, limits)
            own = [f"--property={line}" for line in _limits_text(limits).split()]
        return (_SCOPE, "--scope", "--quiet", "--collect", f"--slice={_slice(group)}", *own, "--")

    async def _end(self, name: ServiceName) -> None:
        # The socket unit is stopped first: otherwise a connection could start the service again.
        for unit in (_socket_unit(name), _unit(name)):
            if (self._units / unit).exists():
                # A long timeout, because systemd itself ends the stop after TimeoutStopSec.
                await self._systemctl("stop", unit, longer=600.0)

    async def _forget_slice(self, slice_: str) -> None:
        """Call it when the group's last service has gone."""
        line, group = f"Slice={slice_}\n", GroupName(slice_.removeprefix(_SLICE).removesuffix(".slice"))
        async with self._one_at_a_time[ServiceName(group)]:
            if any(line in _text(unit) for unit in self._units.glob(f"{_PREFIX}*.service")):
                return
            await self._systemctl("revert", slice_)
            self._limits_file(group).unlink(missing_ok=True)

    async def _check(self, service: Service) -> None:
        """Check in advance for errors that systemd would find only after it has stopped the running service."""
        program = self._seen(Path(service.command[0]))
        if not program.is_file() or not os.access(program, os.X_OK):
            raise LauncherError(f"{service.command[0]} is not a program that can be executed.")
        if service.log is not None and not self._seen(service.log.parent).is_dir():
            raise LauncherError(f"There is no folder for {service.log}.")
        if len({(one.mode, one.owner, one.group) for one in service.sockets}) > 1:
            raise LauncherError(f"The sockets of {service.name} have not all the same mode, owner and group.")
        for listening in service.sockets:
            self._check_socket(listening)
        for kind, names in (
            ("passwd", {service.user, *(one.owner for one in service.sockets)}),
            ("group", {service.group, *(one.group for one in service.sockets)}),
        ):
            await self._run("getent", kind, *sorted(names), failure=f"An account of {service.name} does not exist")

    def _check_socket(self, listening: ListeningSocket) -> None:
        folder, path = self._seen(listening.path.parent), self._seen(listening.path)
        if not folder.is_dir() or folder.stat().st_uid != 0 or folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise LauncherError(f"{listening.path.parent} is not a folder that root alone may change.")
        if path.exists() and not path.is_socket():
            raise LauncherError(f"{listening.path} exists and is not a socket: move it away.")

    def _write(self, service: Service) -> None:
        for path, text, mode in (
            (self._environment_file(service.name), _environment_text(service), 0o600),
            (self._units / _socket_unit(service.name), _socket_text(service), 0o644),
            (self._units / _unit(service.name), _service_text(service), 0o644),
        ):
            if not text:
                path.unlink(missing_ok=True)
                continue
            new = path.with_suffix(".new")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
                file.write(text)
            new.rename(path)

    def _differs(self, path: Path, text: str) -> bool:
        return _text(path) != text

    def _environment_file(self, name: ServiceName) -> Path:
        return self._environments / f"{name}.env"

    def _limits_file(self, group: GroupName) -> Path:
        return self._environments / f"{group}.limits"

    def _pending(self, name: ServiceName) -> Path:
        """A file that exists from before a service's files are written until systemd has loaded them."""
        return self._environments / f"{name}.pending"

    def _seen(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def _weaker(self, name: ServiceName) -> tuple[str, ...]:
        """Which limits systemd accepts without enforcing them, since the cgroup controller is missing."""
        unit = _text(self._units / _unit(name))
        if found := re.search(f"^Slice={_SLICE}(.*)[.]slice$", unit, re.MULTILINE):
            unit = _text(self._limits_file(GroupName(found[1])))
        hierarchy = self._root / "sys/fs/cgroup"
        unified = hierarchy / "cgroup.controllers"
        there = unified.read_text().split() if unified.exists() else [path.name for path in hierarchy.iterdir()]
        settings = (("memory", "MemoryMax="), ("processes", "TasksMax="), ("processor", "CPUQuota="))
        controllers = {"memory": "memory", "processes": "pids", "processor": "cpu"}
        return tuple(
            f"{what}: no limit, this server has no control groups for it"
            for what, setting in settings
            if re.search(f"{setting}[0-9]", unit) and controllers[what] not in there
        )

    async def _systemctl(self, *words: str, longer: float = 0.0) -> str:
        what = f"systemctl {' '.join(words)} failed"
        return await self._run("systemctl", "--no-ask-password", *words, failure=what, longer=longer)

    async def _run(self, *command: str, failure: str, longer: float = 0.0) -> str:
        with trio.move_on_after(_WITHIN + longer):
            ended = await trio.run_process(
                [*self._enter, *command], capture_stdout=True, capture_stderr=True, check=False
            )
            if ended.returncode != 0:
                raise LauncherError(f"{failure}: {ended.stderr.decode(errors='replace').strip()}")
            return ended.stdout.decode()
        raise LauncherError(f"{failure}: no answer in time.")


def _text(path: Path) -> str:
    """The text of a file that others may remove meanwhile; empty if it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _unit(name: ServiceName) -> str:
    if not re.fullmatch("[a-z0-9-]{1,64}", name):
        raise LauncherError(f"{name!r} is no name of a service: lower case letters, digits and dashes.")
    return f"{_PREFIX}{name}.service"


def _socket_unit(name: ServiceName) -> str:
    return f"{_PREFIX}{name}.socket"


def _service_text(service: Service) -> str:
    limits = service.limits
    given = {*service.environment, *(one.variable for one in service.listening)}
    lines = [
        "[Unit]",
        f"Description={service.name} of the hosting panel",
        # 0: restart the service without a limit.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        # ":" prevents systemd from expanding variables in the words.
        f"ExecStart=:{' '.join(_quoted(word) for word in service.command)}",
        f"User={_literal(service.user)}",
        f"Group={_literal(service.group)}",
        "WorkingDirectory=/",
        f"UMask={service.umask:04o}",
        "IgnoreSIGPIPE=no",
        f"EnvironmentFile=/run/svc-host/{service.name}.env",
        f"UnsetEnvironment={' '.join(sorted(_OF_SYSTEMD - given))}",
        *([f"Sockets={_socket_unit(service.name)}"] if service.listening else []),
        f"NonBlocking={'yes' if service.nonblocking else 'no'}",
        f"StandardOutput={'null' if service.log is None else 'append:' + _literal(str(service.log))}",
        "StandardError=inherit",
        "Restart=always",
        "RestartSec=1",
        # The main process gets the stop signal; the remaining processes are then killed.
        "KillMode=mixed",
        f"KillSignal={service.stop_signal.name}",
        f"TimeoutStopSec={service.stop_seconds}",
        "OOMPolicy=continue",
        _limits_text(limits) if service.limit_group is None else f"Slice={_slice(service.limit_group)}",
    ]
    return "\n".join(lines) + "\n"


def _slice(group: GroupName) -> str:
    return f"{_SLICE}{group}.slice"


def _limits_text(limits: Limits) -> str:
    """Lists every limit, so that earlier limits are reset."""
    memory = "infinity" if limits.memory_mib is None else f"{limits.memory_mib}M"
    swap = "infinity" if limits.memory_mib is None else "0"
    processes = "infinity" if limits.processes is None else str(limits.processes)
    processor = "" if limits.cpu_percent is None else f"{limits.cpu_percent}%"
    return f"MemoryMax={memory}\nMemorySwapMax={swap}\nTasksMax={processes}\nCPUQuota={processor}"


def _socket_text(service: Service) -> str:
    """One unit for all of them: the order of descriptors of several socket units is undefined."""
    if not service.listening:
        return ""
    # All sockets have the same owner and mode, as `_check` ensures.
    rights = [
        line
        for one in service.sockets[:1]
        for line in (
            f"SocketMode={one.mode:04o}",
            f"SocketUser={_literal(one.owner)}",
            f"SocketGroup={_literal(one.group)}",
        )
    ]
    lines = [
        "[Unit]",
        f"Description=Sockets of {service.name} of the hosting panel",
        "",
        "[Socket]",
        *[f"ListenStream={_literal(str(one.path))}" for one in service.sockets],
        *[f"ListenStream={_at(one)}" for one in service.ports],
        "BindIPv6Only=ipv6-only",
        *rights,
        "Backlog=4096",
        "RemoveOnStop=yes",
        # 0: the socket stays, however often its service is started.
        "TriggerLimitIntervalSec=0",
        f"Service={_unit(service.name)}",
    ]
    return "\n".join(lines) + "\n"


def _at(port: ListeningPort) -> str:
    return f"[{port.address}]:{port.port}" if ":" in port.address else f"{port.address}:{port.port}"


def _environment_text(service: Service) -> str:
    handed: dict[str, str] = {}
    for number, one in enumerate(service.listening, _FIRST_DESCRIPTOR):
        handed[one.variable] = handed.get(one.variable, "") + one.form.replace("{descriptor}", str(number))
    environment = {**service.environment, **handed}
    for name, value in environment.items():
        # systemd would ignore such variables, and report that only in its journal.
        if not name.isidentifier() or not name.isascii() or any(ord(c) < 32 and c not in "\t\n" for c in value):
            raise LauncherError(f"systemd cannot give {service.name} the variable {name}: a name or character of it.")
    escaped = {name: "".join("\\" + c if c in '"\\`$' else c for c in value) for name, value in environment.items()}
    return "".join(f'{name}="{value}"\n' for name, value in escaped.items()) or "\n"


def _quoted(word: str) -> str:
    escaped = "".join(f"\\x{ord(c):02x}" if ord(c) < 32 or c in '"\\' else c for c in word)
    return f'"{_literal(escaped)}"'


def _literal(text: str) -> str:
    """The value as systemd's files need it: without specifiers (systemd.unit(5)), and always on one line."""
    if any(ord(character) < 32 for character in text):
        raise LauncherError(f"{text!r} has control characters, which no line of a unit can have.")
    return text.replace("%", "%%")


def _exit(code: str, status: str) -> str | None:
    if code == _EXITED:
        return f"exit status {status}"
    return f"signal {status}" if code in (_KILLED, _DUMPED) else None
