"""Tables that a test plays: what each holds is a text, whose words are its facts."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from svc_webhost.databases import DatabaseName, DatabaseServer, EngineKind, RunProgram
from tests.support.recorded_databases import RecordedDatabases, undisturbed


@dataclass
class RecordedTables:
    """Tables are the lines `name: content` of what the played MariaDB holds, so that dumps and loads move them.
    `before` is called before each method with its name."""

    databases: Mapping[EngineKind, DatabaseServer]
    posts: list[str] = field(default_factory=list)
    """Types of posts that visitors have made."""
    kept: list[Sequence[str]] = field(default_factory=list)
    before: Callable[[str], Awaitable[None]] = undisturbed

    @property
    def _contents(self) -> dict[DatabaseName, str]:
        return cast(RecordedDatabases, self.databases[EngineKind.MARIADB]).contents

    def of(self, database: str) -> dict[str, str]:
        lines = self._contents.get(DatabaseName(database), "").splitlines()
        return {name: content for name, _, content in (line.partition(": ") for line in lines)}

    def hold(self, database: str, tables: Mapping[str, str]) -> None:
        self._contents[DatabaseName(database)] = _text(tables)

    async def names(self, database: DatabaseName) -> list[str]:
        await self.before("names")
        return sorted(self.of(database))

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        await self.before("facts")
        return {name: content for name, content in self.of(database).items() if name in tables}

    async def has_posts(self, database: DatabaseName, table: str, types: Collection[str]) -> list[str]:
        await self.before("has_posts")
        return [name for name in self.posts if name in types]

    async def bound(self, database: DatabaseName, tables: Collection[str]) -> list[str]:
        await self.before("bound")
        return []

    async def dump(self, database: DatabaseName, tables: Sequence[str], file: Path, run: RunProgram) -> None:
        await self.before("dump")
        held = self.of(database)
        file.write_bytes(gzip.compress(_text({name: held[name] for name in tables}).encode(), mtime=0))

    async def keep_options(self, new: DatabaseName, live: DatabaseName, table: str, patterns: Sequence[str]) -> None:
        await self.before("keep_options")
        self.kept.append(patterns)

    async def swap(self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]) -> None:
        await self.before("swap")
        here, there = self.of(live), self.of(new)
        self.hold(old, {name: here[name] for name in tables if name in here})
        self.hold(live, here | {name: there.pop(name) for name in tables})
        self.hold(new, there)
        await self.before("swapped")

    async def swap_back(
        self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]
    ) -> bool:
        await self.before("swap_back")
        here, there, aside = self.of(live), self.of(new), self.of(old)
        came = [name for name in tables if name not in there]
        if not came:
            return False
        self.hold(new, there | {name: here.pop(name) for name in came})
        self.hold(live, here | aside)
        self.hold(old, {})
        return True


def _text(tables: Mapping[str, str]) -> str:
    return "".join(f"{name}: {content}\n" for name, content in sorted(tables.items()))
