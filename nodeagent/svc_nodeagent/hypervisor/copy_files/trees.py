"""Resolves a path in a copy's file system: links are followed here, within the copy's own tree, and never by the
server.

A link of a guest to `/etc/passwd` leads to the guest's own file, and `..` never leads out of the guest's tree. The copy
does not change, so a path that was found still exists when its file is read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.copy_files.sftp import MOST_NAME_BYTES, MOST_PATH_BYTES, Attributes
from svc_nodeagent.protocol import EntryKind, FailureCode

_MOST_LINKS: Final = 40
_MOST_STEPS: Final = 1_000


class FileServer(Protocol):
    async def attributes(self, path: bytes) -> Attributes: ...

    async def target(self, path: bytes) -> bytes: ...


@dataclass(frozen=True)
class ResolvedPath:
    """`path`: within the tree, from `/` on, and without links; `place`: the path to ask the server for."""

    path: bytes
    place: bytes
    attributes: Attributes


async def find(server: FileServer, root: bytes, path: bytes) -> ResolvedPath:
    """The result of following this path of the tree at `root`. Raises `HostError`: not_found, conflict for too many
    links, invalid for an invalid path."""
    if len(path) > MOST_PATH_BYTES:
        raise HostError(FailureCode.INVALID, "The path is too long.")
    left = deque(path.split(b"/"))
    at: list[bytes] = []
    links = steps = 0
    attributes = await server.attributes(root)
    while left:
        name = left.popleft()
        if name in (b"", b"."):
            continue
        if name == b"..":
            del at[-1:]
            attributes = await server.attributes(_joined(root, at))
            continue
        steps += 1
        if attributes.kind is not EntryKind.FOLDER or len(name) > MOST_NAME_BYTES:
            raise HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
        place = _joined(root, [*at, name])
        attributes = await server.attributes(place)
        if attributes.kind is not EntryKind.LINK:
            at.append(name)
            continue
        links += 1
        if links > _MOST_LINKS or steps > _MOST_STEPS:
            raise HostError(FailureCode.CONFLICT, "The path has too many symbolic links, or they form a loop.")
        target = await server.target(place)
        if target.startswith(b"/"):
            at.clear()
        attributes = await server.attributes(_joined(root, at))
        left.extendleft(reversed(target[:MOST_PATH_BYTES].split(b"/")))
    return ResolvedPath(b"/" + b"/".join(at), _joined(root, at), attributes)


def _joined(root: bytes, names: list[bytes]) -> bytes:
    return b"/".join([root, *names])
