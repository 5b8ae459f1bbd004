"""PHP that runs because a test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import ServiceName
from svc_webhost.packages import RunProgram
from svc_webhost.php import Extension, PhpError, Pool, number_of
from svc_webhost.php.extensions import ExtensionState, UnloadableError


@dataclass
class RecordedPhp:
    """`pools` run now. `refuses` says of a version why it does not start."""

    pools: dict[ServiceName, Pool] = field(default_factory=dict)
    installed: list[str] = field(default_factory=lambda: ["8.2", "7.4"])
    refuses: dict[str, str] = field(default_factory=dict)
    started: list[Pool] = field(default_factory=list)
    stopped: list[ServiceName] = field(default_factory=list)
    removed: list[SiteAccount] = field(default_factory=list)
    rested: list[float] = field(default_factory=list)
    held: list[Pool] = field(default_factory=list)
    lost: set[ServiceName] = field(default_factory=set)
    """Whose configuration is gone."""
    looks: int = 0
    done: list[str] = field(default_factory=list)
    """In their order: start, stop, stopped."""
    before_stop: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def versions(self) -> list[str]:
        return list(self.installed)

    async def extensions(self, version: str) -> list[Extension]:
        return [Extension("curl", enabled=False), Extension("opcache", enabled=True)]

    async def start(self, pool: Pool) -> None:
        self.done.append("start")
        if pool.version in self.refuses:
            raise PhpError(self.refuses[pool.version])
        self.pools[pool.service_name] = pool
        self.started.append(pool)

    async def running(self) -> frozenset[ServiceName]:
        self.looks += 1
        return frozenset(self.pools)

    async def rest_idle(self, seconds: float) -> None:
        self.rested.append(seconds)

    async def reconcile(self, pools: Collection[Pool]) -> None:
        self.held += pools

    async def is_current(self, pool: Pool) -> bool:
        return pool.service_name not in self.lost

    async def problem(self, pool: Pool) -> str | None:
        return None if pool.service_name in self.pools else f"PHP {pool.version} does not run."

    async def stop(self, name: ServiceName) -> None:
        self.done.append("stop")
        await self.before_stop()
        self.done.append("stopped")
        self.pools.pop(name, None)
        self.stopped.append(name)

    async def remove(self, account: SiteAccount) -> None:
        self.removed.append(account)
        for name in [name for name in self.pools if number_of(name) == account.number]:
            await self.stop(name)

    def of(self, number: int) -> list[Pool]:
        """What runs for a site."""
        return [pool for pool in self.pools.values() if pool.account.number == number]


@dataclass
class RecordedExtensions:
    """Extensions of every version. `unloadable` cannot be loaded once they are enabled."""

    known: dict[str, ExtensionState] = field(
        default_factory=lambda: {
            "curl": ExtensionState.DISABLED,
            "opcache": ExtensionState.ENABLED,
            "redis": ExtensionState.AVAILABLE,
        }
    )
    unloadable: set[str] = field(default_factory=set)

    async def states(self, version: str) -> dict[str, ExtensionState]:
        return dict(self.known)

    async def loaded(self, version: str) -> frozenset[str]:
        enabled = (name for name, state in self.known.items() if state is ExtensionState.ENABLED)
        return frozenset({"core", "json", "mysqli", *enabled})

    async def install(self, version: str, name: str, run: RunProgram) -> None:
        self.known[name] = ExtensionState.ENABLED

    async def enable(self, version: str, name: str, run: RunProgram) -> None:
        self.known[name] = ExtensionState.ENABLED

    async def disable(self, version: str, name: str, run: RunProgram) -> None:
        self.known[name] = ExtensionState.DISABLED

    async def prove(self, version: str, run: RunProgram) -> None:
        for name in self.unloadable:
            if self.known.get(name) is ExtensionState.ENABLED:
                raise UnloadableError(f"Unable to load dynamic library '{name}'")
