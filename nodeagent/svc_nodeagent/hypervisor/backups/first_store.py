"""Creates a store in a bucket if the keys give access only to one machine's folder of the bucket.

`restic init` checks whether the bucket exists, for which it lists the bucket without a prefix. Such keys may not do
that, since the list would show all machines. So an empty repository is created in a folder of the node, and its two
files are sent to the bucket.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from svc_nodeagent.hypervisor.backups.places import RemotePlace, ResticAccess
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.programs import ProgramFailed


@dataclass(frozen=True)
class LocalPlace:
    folder: Path

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[ResticAccess]:
        yield ResticAccess(str(self.folder))

    def failure(self, failed: ProgramFailed) -> ProgramFailed:
        return failed


@asynccontextmanager
async def folder_for_a_store() -> AsyncIterator[LocalPlace]:
    with tempfile.TemporaryDirectory(prefix="svc-store-") as folder:
        yield LocalPlace(Path(folder) / "store")


async def send_first_files(store: LocalPlace, place: RemotePlace) -> None:
    """Send the file `key`, and then the file `config`. Raises `HostError`."""
    # `config` is written last, because its existence makes the folder a repository: one without a key could neither be
    # opened nor created again.
    for path in (*await in_thread(lambda: list((store.folder / "keys").iterdir())), store.folder / "config"):
        await place.put(str(path.relative_to(store.folder)), await in_thread(path.read_bytes))
