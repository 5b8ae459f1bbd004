"""A machine's store that is kept in memory, without restic: a run of which takes most of a second."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid4

import trio
import trio.testing

from svc_nodeagent.hypervisor.backups.chains import Snapshot
from svc_nodeagent.hypervisor.backups.store import MachineStore, Sink


@dataclass
class Kept:
    name: str
    tags: tuple[str, ...]
    content: bytes


class MemoryStore(MachineStore):
    def __init__(self) -> None:
        self.kept_by_id: dict[str, Kept] = {}
        self.lost = False
        """The next look finds that something is missing."""

    async def prepare(self) -> None:
        pass

    async def unlock(self) -> None:
        pass

    async def prune(self) -> bool:
        return True

    async def verify(self, share: int) -> bool:
        whole, self.lost = not self.lost, False
        return whole

    async def strike_off_lost(self) -> None:
        pass

    async def _asked(self, *arguments: str) -> bytes | None:
        assert arguments[0] == "snapshots"
        told = [{"id": id, "tags": each.tags, "paths": [f"/{each.name}"]} for id, each in self.kept_by_id.items()]
        return json.dumps(told).encode()

    async def _run(self, *arguments: str, timeout: float, in_its_terms: bool = True, plainly: bool = False) -> bytes:
        assert arguments[:2] == ("forget", "--quiet")
        for id in arguments[2:]:
            del self.kept_by_id[id]
        return b""

    @asynccontextmanager
    async def _writer(self, name: str, tags: Sequence[str]) -> AsyncIterator[Sink]:
        taken = _Taken()
        yield Sink(cast(Any, taken), trio.CancelScope())
        self.kept_by_id[uuid4().hex] = Kept(name, tuple(tags), bytes(taken.content))

    @asynccontextmanager
    async def reader(self, snapshot: Snapshot) -> AsyncIterator[trio.abc.ReceiveStream]:
        send, receive = trio.testing.memory_stream_one_way_pair()
        await send.send_all(self.kept_by_id[snapshot.id].content)
        await send.aclose()
        yield receive

    def copies(self) -> set[UUID]:
        """That there is something of."""
        return {UUID(each.tags[0]) for each in self.kept_by_id.values() if each.name != "dropped"}


class _Taken:
    def __init__(self) -> None:
        self.content = bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.content += data
        await trio.lowlevel.checkpoint()
