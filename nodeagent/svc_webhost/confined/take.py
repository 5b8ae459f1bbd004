"""Unpacks one site's part of an archive next to the site's files: `python -I -S confined/take.py ORDER`

The archive is standard input. The order is a JSON object: `uid` and `gid` of the site's account; `root`, its folder;
`into`, the folder in it that is created anew and unpacked into; `site`, an `archives.model.FoundSite`; and `files`,
which maps paths of the archive to places below the site's folder: dumps, certificates and passwords, readable for the
site alone until they were used. `private` are paths of the archive among
the site's files that only the site may read, above all not the web server.

This process becomes the account, and Landlock limits it to the folder. Nothing reaches its final place here:
`into` then has what the site's folder will have, and `PlaceImported` moves it there. At last this prints one line that
starts with `took ` and a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.archives import reading
from svc_webhost.archives.applications import CONFIGURATIONS
from svc_webhost.archives.model import FoundSite
from svc_webhost.archives.placing import link_target, placed_at
from svc_webhost.confined import kernel
from svc_webhost.confined.archive_formats import Budget, Kind, Member, understood
from svc_webhost.confined.extract import names_of, unpack
from svc_webhost.confined.layers import ZSTD, Content, PeekableStream, Zstd, entries
from svc_webhost.confined.protocol import FileError
from svc_webhost.confined.room import DiskBudget
from svc_webhost.confined.survey import confine, shown
from svc_webhost.confined.tree import Tree, held, parts, remove, translate_errors

TOOK: Final = "took "
_REFUSED: Final = 3
_BLOCK: Final = 1 << 18
_CLOSED: Final = 0o700
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_SERVED: Final = 0o044
"""The web server has another account, but must be able to read everything that visitors request, including scripts.
Configuration files are readable only for the site's own account."""


def main() -> int:
    order = json.loads(sys.argv[1])
    try:
        root = os.open(order["root"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        confine(order["uid"], order["gid"], root)
        site = None if order["site"] is None else FoundSite(**order["site"])
        with os.fdopen(0, "rb", buffering=1 << 20) as archive, understood():
            taken = _Taken(site, order["files"], frozenset(order["private"]))
            count = _into(Tree(root), order["into"], taken.members(archive))
    except FileError as error:
        print(shown(error.message), flush=True)
        return _REFUSED
    except OSError as error:
        print(f"The archive cannot be unpacked here: {error}.", flush=True)
        return _REFUSED
    print(
        TOOK + json.dumps({"entries": count, "links_left": taken.links_left, "files": sorted(taken.found)}), flush=True
    )
    return 0


class _Taken:
    """Selects the site's entries, and names them."""

    def __init__(self, site: FoundSite | None, files: Mapping[str, str], private: frozenset[str] = frozenset()) -> None:
        self._site = site
        self._files = files
        self._private = private
        self.links_left = 0
        self.found: set[str] = set()

    def members(self, archive: BinaryIO) -> Iterator[Member]:
        budget = Budget(os.fstat(archive.fileno()).st_size)
        for member in entries(archive, budget, lambda name: reading.nested(os.fsdecode(name))):
            taken = self._taken(member, budget)
            if taken is not None:
                yield taken
            else:
                for _ in member.content:
                    pass

    def _taken(self, member: Member, budget: Budget) -> Member | None:
        names = names_of(member)
        path = os.fsdecode(b"/".join(names))
        if path in self._files and member.kind is Kind.FILE:
            self.found.add(path)
            content = _unzstd(member.content, budget)
            return replace(member, name=os.fsencode(self._files[path]), mode=0o600, content=content)
        placed = None if self._site is None or not names else placed_at(self._site, path)
        if placed is None or self._site is None:
            return None
        name = os.fsencode(placed)
        match member.kind:
            case Kind.FOLDER:
                return replace(member, name=name, mode=member.mode | 0o755)
            case Kind.FILE:
                if path in self._private:
                    return replace(member, name=name, mode=0o600)
                mode = member.mode if CONFIGURATIONS.fullmatch(placed) else member.mode | _SERVED
                return replace(member, name=name, mode=mode)
            case Kind.HARD_LINK:
                original = placed_at(self._site, os.fsdecode(member.target))
                if original is not None:
                    return replace(member, name=name, target=os.fsencode(original))
            case Kind.LINK:
                target = link_target(self._site, path, os.fsdecode(member.target))
                if target is not None:
                    return replace(member, name=name, target=os.fsencode(target))
        self.links_left += 1
        return None


def _unzstd(content: Iterable[bytes], budget: Budget) -> Iterator[bytes]:
    """Decompress a dump if it is compressed by zstd: the program that loads the dump reads gzip, bzip2 and xz
    itself."""
    stream = PeekableStream(Content(content))
    packed = stream.peek(4) == ZSTD
    whole = Zstd(stream) if packed else stream
    while block := whole.read(_BLOCK):
        if packed:
            budget.spend(len(block))
        yield block


def _into(tree: Tree, path: str, members: Iterator[Member]) -> int:
    """Create the folder to unpack into. Other accounts cannot pass through it, above all not the web server. If
    unpacking fails, the folder is removed with its content."""
    *above, name = parts(path)
    for depth in range(len(above)):
        with (
            translate_errors(path),
            suppress(FileExistsError),
            held(tree.open_folder(os.fsdecode(b"/".join(above[:depth])))) as at,
        ):
            os.mkdir(above[depth], _CLOSED, dir_fd=at)
    with translate_errors(path), held(tree.open_folder(os.fsdecode(b"/".join(above)))) as at:
        os.mkdir(name, _CLOSED, dir_fd=at)
        try:
            with held(kernel.open_beneath(at, name, _FOLDER, follow=False)) as folder:
                return unpack(folder, members, DiskBudget(folder))
        except BaseException:
            with suppress(OSError):
                remove(at, name)
            raise


if __name__ == "__main__":
    sys.exit(main())
