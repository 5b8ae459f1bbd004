"""Copies in memory whose files are shown by a real QEMU, in a process of the test's own or in one that it may kill.

python -m tests.nodeagent.hypervisor.copy_node FOLDER RESCUE_SYSTEM
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.acceleration import Acceleration
from svc_nodeagent.hypervisor.copy_files.opened import CopyFiles
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.protocol import (
    CopiedDisk,
    CopiedFolder,
    CopiedPart,
    FailureCode,
    OpenedCopy,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
)
from tests.nodeagent.hypervisor.builders import FileStream, rescue_image, silent
from tests.nodeagent.hypervisor.memory_store import MemoryStore

VM: Final = uuid4()
MOST: Final = 1024 * 1024


class Node:
    """What is open on a node, without libvirt; copies are in memory."""

    def __init__(self, files: CopyFiles, folders: Folders, store: MemoryStore, system: Path) -> None:
        self.files = files
        self.folders = folders
        self._store = store
        self._system = system

    async def copied(self, *disks: bytes) -> VmFilesOpen:
        """What opens a copy of a machine with these disks."""
        copy_id, told = uuid4(), []
        for index, content in enumerate(disks):
            async with self._store.writer(copy_id, f"disk-{index}.raw") as sink:
                await sink.send_all(content)
            digest = hashlib.sha256(content).hexdigest()
            told.append(CopiedDisk(index=index, size_bytes=len(content), digest=digest))
        return VmFilesOpen(vm_id=VM, copy_id=copy_id, password="", disks=tuple(told), system=rescue_image(self._system))

    async def open(self, operation: VmFilesOpen) -> OpenedCopy:
        result = await self.files.perform(operation, silent)
        assert isinstance(result, OpenedCopy)
        return result

    async def list(self, copy_id: UUID, path: str, volume: int = 0) -> CopiedFolder:
        operation = VmFilesList(vm_id=VM, copy_id=copy_id, volume=volume, path=path, offset=0)
        result = await self.files.perform(operation, silent)
        assert isinstance(result, CopiedFolder)
        return result

    async def part(self, copy_id: UUID, path: str, offset: int = 0, length: int = MOST) -> CopiedPart:
        operation = VmFilesRead(vm_id=VM, copy_id=copy_id, volume=0, path=path, offset=offset, length=length)
        result = await self.files.perform(operation, silent)
        assert isinstance(result, CopiedPart)
        return result

    async def content(self, copy_id: UUID, path: str) -> bytes:
        data = b""
        while (part := await self.part(copy_id, path, len(data))) and len(data) < part.size_bytes:
            data += base64.b64decode(part.data)
        return data

    async def code_of(self, copy_id: UUID, path: str, volume: int = 0) -> FailureCode:
        with pytest.raises(HostError) as refused:
            await self.list(copy_id, path, volume)
        return refused.value.code

    async def until_closed(self) -> None:
        with trio.fail_after(60):
            while await trio.Path(self.folders.copy_files).exists() and os.listdir(self.folders.copy_files):
                await trio.sleep(0.05)


@asynccontextmanager
async def a_node(folder: Path, system: Path) -> AsyncIterator[Node]:
    async def open_stream(_: str) -> trio.abc.Stream:
        return FileStream(await trio.Path(system).read_bytes())

    def no_client() -> Any:
        raise AssertionError("nothing is fetched from outside")

    store, folders = MemoryStore(), Folders(folder)
    folders.create()
    images, acceleration = (
        ImageCache(folders, open_stream, open_client=no_client),
        Acceleration(folder / "accelerator.json"),
    )
    files = CopyFiles(folders, images, acceleration, lambda *_: store)
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        yield Node(files, folders, store, system)
        nursery.cancel_scope.cancel()


async def main(*arguments: str) -> None:
    folder, system = arguments
    async with a_node(Path(folder), Path(system)) as node:
        await node.open(await node.copied(bytes(MOST)))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
