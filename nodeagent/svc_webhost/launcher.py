"""Runs long-running programs of the server, which outlive the core: one interface with two implementations.

Under systemd they are units; elsewhere the keeper runs them (`svc_webhost.keeper`). A started program keeps running
whatever happens to the core, and the next core finds it by its name.

Why: docs/decisions/0039-launcher-and-keeper.md.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NewType, Protocol

ServiceName = NewType("ServiceName", str)
"""Lower-case letters, digits and dashes, such as `nginx`, `knot`, `php-s1001`."""


class LauncherError(Exception):
    """A program could not be started, reloaded or stopped; the message has its own error."""


GroupName = NewType("GroupName", str)
"""The name of a group of services with common limits, in the form of a service's name."""


@dataclass(frozen=True)
class Limits:
    """Limits that all processes of a service or group have together; None: no limit."""

    cpu_percent: int | None = None
    """Percent of one core."""
    memory_mib: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class ListeningSocket:
    """A Unix socket that is bound for the service and passed to it: connections wait while the service is replaced. Its
    folder is root's alone. The sockets of one service have the same mode, owner and group.

    The service finds its descriptor in the environment variable `variable`, formatted by `form`."""

    path: Path
    mode: int
    owner: str
    group: str
    variable: str
    form: str = "{descriptor}"


@dataclass(frozen=True)
class ListeningPort:
    """A TCP port at one address (for IPv6, without IPv4), passed on like a `ListeningSocket`: connections wait while
    the service is replaced, instead of being refused."""

    address: str
    port: int
    variable: str
    form: str = "{descriptor}"


@dataclass(frozen=True)
class Service:
    """The definition of a service. Two equal definitions are the same service: `ensure` leaves it running."""

    name: ServiceName
    command: tuple[str, ...]
    """An absolute program and its arguments; it stays in the foreground."""
    user: str = "root"
    group: str = "root"
    environment: Mapping[str, str] = field(default_factory=dict)
    """The complete environment, except for the variables of `sockets`."""
    sockets: tuple[ListeningSocket, ...] = ()
    ports: tuple[ListeningPort, ...] = ()
    """The descriptors of these follow those of `sockets`. If several have the same variable, their values are
    joined."""
    nonblocking: bool = False
    """Whether accept(2) on `sockets` and `ports` fails if no connection waits. A program needs this if its processes
    wait in epoll(7) and do not set it themselves: if two processes wake for one connection, the second one would
    hang."""
    limits: Limits = Limits()
    limit_group: GroupName | None = None
    """The group whose limits apply to all of its services together. `SiteLauncher.limit` changes them while the
    services run."""
    log: Path | None = None
    """The file to which the service's standard output and error are appended."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    """The service is killed if it takes longer to stop."""
    umask: int = 0o022
    """The umask(2) of the service."""
    on_demand: bool = False
    """Whether the service is started by the first connection to one of its sockets, and again after `stop_idle`."""

    @property
    def listening(self) -> tuple[ListeningSocket | ListeningPort, ...]:
        """Sockets and ports in the order of their descriptors."""
        return (*self.sockets, *self.ports)


@dataclass(frozen=True)
class ServiceStatus:
    running: bool
    pid: int | None = None
    since: datetime | None = None
    restarts: int = 0
    """How often the service has ended by itself and was started again, with growing pauses."""
    last_exit: str | None = None
    """How the service ended last: "exit status 1", "signal 11"; None if that is not known."""
    weaker_limits: tuple[str, ...] = ()
    """The limits that this server cannot fully enforce, in words."""


class Launcher(Protocol):
    """Every method raises `LauncherError`; each may be repeated."""

    async def ensure(self, service: Service) -> ServiceStatus:
        """Make the service run as defined: start it if needed, replace it if its definition has changed. A service that
        ends by itself is started again. For one on demand the sockets are bound, and it is started when it is
        needed."""
        ...

    async def reload(self, name: ServiceName) -> None:
        """Send the service SIGHUP."""
        ...

    async def stop(self, name: ServiceName) -> None:
        """Stop the service with everything it started, and remove its sockets. An unknown service counts as stopped."""
        ...

    async def status(self, name: ServiceName) -> ServiceStatus: ...

    async def names(self) -> frozenset[ServiceName]:
        """Every service that any core has ensured and not stopped."""
        ...


class SiteLauncher(Launcher, Protocol):
    """Further methods for programs of sites, and for updates."""

    async def limit(self, group: GroupName, limits: Limits) -> None:
        """All services of the group together, current and later ones, have these limits from now on."""
        ...

    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        """The start of a command that is run as root until it ends: its process, and all that it starts, count for the
        limits of the group, which are these from now on; None keeps the current ones. The process stays the same one,
        and belongs to its starter: no launcher ends it."""
        ...

    async def restart(self, name: ServiceName) -> None:
        """Replace the running process by another one on the same sockets; does nothing if none runs."""
        ...

    async def stop_idle(self, name: ServiceName) -> None:
        """End the process of a service on demand. Its sockets stay, and the next connection starts it again."""
        ...

    async def processes(self) -> Mapping[ServiceName, int]:
        """The main process of each running service."""
        ...

    async def restarts(self) -> Mapping[ServiceName, int]:
        """How often each service has ended by itself and was started again."""
        ...
