"""A package manager that does whatever it is told, and remembers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from svc_common.errors import unavailable
from svc_webhost.launcher import ServiceName
from svc_webhost.packages import PackageError, PackageUpdate, RunProgram


@dataclass
class RecordedPackages:
    """`offered` are updates that the lists have. `broken` fails to install, what comes before it does not. `old` runs
    from files that are gone. `unreachable`: why the lists are not fetched; `mute`: why apt does not answer."""

    offered: list[PackageUpdate] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    old: set[ServiceName] = field(default_factory=set)
    unreachable: str | None = None
    mute: str | None = None
    there: dict[str, str] = field(default_factory=lambda: {"knot": "3.2-1"})
    holds: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    async def updates(self) -> list[PackageUpdate]:
        self.calls.append("updates")
        if self.mute is not None:
            raise PackageError(self.mute)
        waiting = [each for each in self.offered if self.there.get(each.name) != each.available]
        return [replace(each, held=each.name in self.holds) for each in waiting]

    async def versions(self) -> Mapping[str, str]:
        return {**{each.name: each.installed for each in self.offered}, **self.there}

    async def held(self) -> frozenset[str]:
        return frozenset(self.holds)

    async def hold(self, name: str, held: bool) -> None:
        self.calls.append("hold" if held else "unhold")
        (self.holds.add if held else self.holds.discard)(name)

    async def refresh(self, run: RunProgram) -> None:
        self.calls.append("refresh")
        if self.unreachable is not None:
            raise unavailable(self.unreachable)

    async def install(self, updates: Sequence[PackageUpdate], run: RunProgram) -> None:
        self.calls.append("install")
        for update in updates:
            if update.name in self.broken:
                raise unavailable(f"{update.name} does not install.")
            self.there[update.name] = update.available

    async def outdated(self, processes: Mapping[ServiceName, int]) -> frozenset[ServiceName]:
        return frozenset(self.old)
