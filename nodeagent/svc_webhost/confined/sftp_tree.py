"""Reads the tree below a folder of another host by SFTP, as entries of a tar archive."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from svc_webhost.confined.other_host import FetchError, printable
from svc_webhost.confined.sftp_client import Entry, RefusedError, SftpClient

_MOST_WAITING: Final = 1_000_000
"""The most folders that are known but not read yet: protects against a server that lists ever more of them."""


class TreeEntry(NamedTuple):
    """`size`: that of the entry's content. `blocks`: the content, which may be shorter if it was truncated meanwhile;
    take it before the next entry."""

    header: tarfile.TarInfo
    blocks: Iterator[bytes]


def tree(client: SftpClient, folder: str) -> Iterator[TreeEntry]:
    """The folder's subfolders, files and links, by their paths on the other host after a dot, as `tar -C / .FOLDER`
    names them; entries that vanish meanwhile are left out. Links are not followed. Raises FetchError for an unreadable
    entry."""
    path = os.fsencode(folder)
    try:
        waiting = [client.folder(path)]
    except RefusedError as refused:
        raise _unread(path, refused) from refused
    while waiting:
        one = waiting.pop()
        try:
            entries = client.entries(one.path)
        except RefusedError as refused:
            if refused.gone:
                continue
            raise _unread(one.path, refused) from refused
        yield TreeEntry(_told(one, tarfile.DIRTYPE), iter(()))
        waiting += [entry for entry in entries if stat.S_ISDIR(entry.mode)]
        if len(waiting) > _MOST_WAITING:
            raise FetchError(f"{printable(folder)} has more than {_MOST_WAITING:,} folders.")
        for entry in entries:
            if stat.S_ISLNK(entry.mode):
                yield from _link(client, entry)
        for entry, content in client.contents(entry for entry in entries if stat.S_ISREG(entry.mode)):
            if not isinstance(content, RefusedError):
                told = _told(entry, tarfile.REGTYPE)
                told.size = entry.size
                yield TreeEntry(told, _blocks(entry, content))
            elif not content.gone:
                raise _unread(entry.path, content)


def _link(client: SftpClient, entry: Entry) -> Iterator[TreeEntry]:
    try:
        target = client.target(entry.path)
    except RefusedError as refused:
        if refused.gone:
            return
        raise _unread(entry.path, refused) from refused
    told = _told(entry, tarfile.SYMTYPE)
    told.linkname = os.fsdecode(target)
    yield TreeEntry(told, iter(()))


def _blocks(entry: Entry, content: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from content
    except RefusedError as refused:
        raise _unread(entry.path, refused) from refused


def _told(entry: Entry, kind: bytes) -> tarfile.TarInfo:
    told = tarfile.TarInfo(f".{os.fsdecode(entry.path)}")
    told.type, told.mode, told.mtime = kind, stat.S_IMODE(entry.mode), entry.modified
    return told


def _unread(path: bytes, refused: RefusedError) -> FetchError:
    return FetchError(f"The files were not read: {printable(os.fsdecode(path))}: {refused}")
