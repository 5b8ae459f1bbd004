"""How long-running programs of the server are started, and outlive the core: one interface, and two that implement it.

Under systemd they are units; elsewhere the keeper holds them (`svc_actors.host.keeper`). A program that was started
goes on whatever becomes of the core, and the next core finds it by its name.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NewType, Protocol

ServiceName = NewType("ServiceName", str)
"""Lower case letters, digits and dashes: `nginx`, `knot`, `php-s1001`."""


class LauncherError(Exception):
    """A program could not be started, reloaded or stopped; the message says what it said itself."""


GroupName = NewType("GroupName", str)
"""Of services that have their limits together; as a service's name."""


@dataclass(frozen=True)
class Limits:
    """What all processes of a service or of a group have together; None: as much as there is."""

    cpu_percent: int | None = None
    """Of one core."""
    memory_mib: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class ListeningSocket:
    """A Unix socket that is bound for the service and handed to it: connections wait while the service is replaced.
    Its folder is root's alone. The sockets of one service have the same mode, owner and group.

    The service finds its descriptor by the variable `variable` of its environment, formatted by `form`."""

    path: Path
    mode: int
    owner: str
    group: str
    variable: str
    form: str = "{descriptor}"


@dataclass(frozen=True)
class ListeningPort:
    """A TCP port at one address, of IPv6 that alone, handed over as a `ListeningSocket` is: who connects while the
    service is replaced waits, and is not refused."""

    address: str
    port: int
    variable: str
    form: str = "{descriptor}"


@dataclass(frozen=True)
class Service:
    """What shall run. Two equal definitions are the same service: `ensure` leaves what runs alone."""

    name: ServiceName
    command: tuple[str, ...]
    """An absolute program and its arguments; it stays in the foreground."""
    user: str = "root"
    group: str = "root"
    environment: Mapping[str, str] = field(default_factory=dict)
    """All of it, but for what `sockets` add."""
    sockets: tuple[ListeningSocket, ...] = ()
    ports: tuple[ListeningPort, ...] = ()
    """Their descriptors follow those of `sockets`. What several have the same variable for is joined in it."""
    nonblocking: bool = False
    """Whether accept(2) of `sockets` and `ports` fails where nobody waits. A program whose processes wait in epoll(7)
    needs it and may not see to it itself: of two that are woken for one connection, the other would hang."""
    limits: Limits = Limits()
    limit_group: GroupName | None = None
    """Its limits are those of all services of the group together: `SiteLauncher.limit` changes them while they run."""
    log: Path | None = None
    """What it writes to its standard output and error is appended here."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    """Killed after that."""
    umask: int = 0o022
    """Of the files that it makes (umask(2))."""
    on_demand: bool = False
    """Started by the first who connects to one of its sockets, and again after `rest`."""

    @property
    def listening(self) -> tuple[ListeningSocket | ListeningPort, ...]:
        """In the order of their descriptors."""
        return (*self.sockets, *self.ports)


@dataclass(frozen=True)
class ServiceStatus:
    running: bool
    pid: int | None = None
    since: datetime | None = None
    restarts: int = 0
    """How often it ended by itself and was started again, with back-off."""
    last_exit: str | None = None
    """How it ended last: "exit status 1", "signal 11"; None where that is not known any more."""
    weaker_limits: tuple[str, ...] = ()
    """What of its limits this server cannot hold as they are meant, in words."""


class Launcher(Protocol):
    """Every method raises `LauncherError`; each may be repeated."""

    async def ensure(self, service: Service) -> ServiceStatus:
        """The service runs as defined: started where it does not, replaced where it is defined otherwise. What ends by
        itself is started again. Of one on demand the sockets are bound, and it is started when it is needed."""
        ...

    async def reload(self, name: ServiceName) -> None:
        """Send it SIGHUP."""
        ...

    async def stop(self, name: ServiceName) -> None:
        """It runs no more, nor does anything it started; its sockets are gone. One that is unknown is stopped."""
        ...

    async def status(self, name: ServiceName) -> ServiceStatus: ...

    async def names(self) -> frozenset[ServiceName]:
        """Every service that was ensured and not stopped, by whichever core."""
        ...


class SiteLauncher(Launcher, Protocol):
    """What programs of sites, and updates of what runs, ask of it besides."""

    async def limit(self, group: GroupName, limits: Limits) -> None:
        """All services of the group together, those that run and those that will, have these from now on."""
        ...

    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        """The beginning of a command that is started as root and runs to its end: its process, and all that it starts,
        are bounded with the services of the group, whose limits are these from now on; None leaves those that it has.
        The process stays the same one, and is nobody's but its starter's: no launcher ends it."""
        ...

    async def restart(self, name: ServiceName) -> None:
        """Another process takes the place of the one that runs, on the same sockets; of what does not run nothing
        does."""
        ...

    async def rest(self, name: ServiceName) -> None:
        """The process of a service on demand ends. Its sockets stay, and whoever connects has it started again."""
        ...

    async def processes(self) -> Mapping[ServiceName, int]:
        """The main process of each service that runs."""
        ...

    async def restarts(self) -> Mapping[ServiceName, int]:
        """How often each service has ended by itself and was started again."""
        ...
