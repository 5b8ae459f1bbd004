"""The files of copies on a simulated host: every copy has the same few, on one volume."""

from __future__ import annotations

import base64
from typing import Final
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    CopiedFolder,
    CopiedPart,
    CopiedVolume,
    CopyEntry,
    CopyFilesOperation,
    CopyVolumeState,
    Done,
    EntryKind,
    FailureCode,
    OpenedCopy,
    OperationResult,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
)

FILES: Final = {
    "/etc/hostname": b"simulated\n",
    "/etc/nginx/nginx.conf": b"events {}\n" * 200,
    "/home/alice/%FF notes.txt": b"kept\n",
    "/var/lib/large": bytes(range(256)) * 6_000,
}
_VOLUME: Final = CopiedVolume(
    number=1, device="vda1", type="ext4", size_bytes=1024**3, state=CopyVolumeState.MOUNTED, system=True
)


class SimulatedCopyFiles:
    def __init__(self) -> None:
        self._open: set[tuple[UUID, UUID]] = set()

    def perform(self, operation: CopyFilesOperation) -> OperationResult:
        """Raises `HostError` as a real host does."""
        which = (operation.vm_id, operation.copy_id)
        match operation:
            case VmFilesOpen():
                self._open.add(which)
                return OpenedCopy(vm_id=operation.vm_id, copy_id=operation.copy_id, volumes=(_VOLUME,))
            case VmFilesClose():
                self._open.discard(which)
                return Done()
        if which not in self._open:
            raise HostError(FailureCode.INTERRUPTED, "The backup's files are not open on the machine's node.")
        path = "/" + operation.path.strip("/")
        match operation:
            case VmFilesList():
                entries = _entries(path)
                return CopiedFolder(
                    volumes=(_VOLUME,), volume=1, path=path, entries=entries, total=len(entries), cut=False
                )
            case VmFilesRead():
                content = FILES.get(path)
                if content is None:
                    raise HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
                part = content[operation.offset : operation.offset + operation.length]
                data = base64.b64encode(part).decode()
                return CopiedPart(volume=1, path=path, size_bytes=len(content), modified=1_700_000_000, data=data)


def _entries(path: str) -> tuple[CopyEntry, ...]:
    above = path.rstrip("/") + "/"
    found: dict[str, CopyEntry] = {}
    for file, content in FILES.items():
        if file.startswith(above):
            name, _, below = file.removeprefix(above).partition("/")
            kind, size = (EntryKind.FOLDER, 0) if below else (EntryKind.FILE, len(content))
            mode = 0o755 if below else 0o644
            found[name] = CopyEntry(name=name, kind=kind, size_bytes=size, modified=1_700_000_000, mode=mode)
    if not found:
        raise HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
    return tuple(found[name] for name in sorted(found))
