"""Checks and repairs owners and modes of a site's files, so that the site works.

Invariants: links that a site could have placed are never followed, folders and files are opened one below the other;
owner and mode are changed of exactly the checked file, through its descriptor; a file of another account with several
names (hard links) is left as it is, since another name may be a file of the server's.

    python -I -S site_rights.py look HOME UID WEB_SERVER_GID      prints the problems: each line is a `WrongRights`
    python -I -S site_rights.py mend HOME UID

A site may have a million files, and its owner may ask at will. A thread of the core would hold its interpreter's lock
again and again meanwhile, and could not be ended, so the core starts this as a program. It needs the standard library
only. Its output is a few lines of bounded length, whatever a site's files and their names are.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

_MOST: Final = 1_000_000
"""The most files and folders that are checked, and the deepest level of folders."""
_DEEPEST: Final = 64
_MOST_NAMED: Final = 20
"""How many files are named; further ones are only counted."""
_LONGEST_PATH: Final = 300
"""Characters of a path in a message."""
_FOLDERS: Final = ("public", "private")
_ASSET: Final = re.compile(
    r".+\.(?:html?|css|m?js|wasm|png|jpe?g|gif|svg|webp|avif|ico|woff2?|ttf|otf|eot|mp[34]|webm|ogg)", re.IGNORECASE
)
"""Files that pages consist of. The web server itself serves these files, so it must be able to read them. Scripts are
read by the site's own account. Files that an owner may keep from visitors by their mode on purpose are not included:
credentials in JSON, archives, PDF."""
_READABLE: Final = 0o044


@dataclass(frozen=True)
class WrongRights:
    """`lost`: a folder with the site's data is missing. It is never created anew: it would be empty, and look as if all
    was well, and the next backups would be empty. `count`: number of files that it covers; `mendable` means that at
    least one of them can be repaired."""

    words: str
    mendable: bool = True
    lost: bool = False
    count: int = 1


@dataclass(frozen=True)
class _Seen:
    """`descriptor` is of the entry itself, opened only to refer to it (O_PATH); its provider closes it."""

    descriptor: int
    path: str
    uid: int
    gid: int
    mode: int
    links: int
    served: bool = False
    """Whether the web server has to read the entry, or to reach what is in it."""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


def wrong_rights(home: Path, uid: int, web_server: int) -> list[WrongRights]:
    """Problems of a site's home; `uid` is also the id of its group. Raises OSError."""
    return [*_wrong_folders(home, uid, web_server), *_summed_up(_wrong_files(home, uid))]


def repair_rights(home: Path, uid: int) -> None:
    """Repair the content of the home's folders, whose own rights are already correct. Raises OSError."""
    for seen in _below(home):
        if _words(seen, uid) is None or _is_left(seen, uid):
            continue
        itself = f"/proc/self/fd/{seen.descriptor}"
        # The owner is changed first, because this clears the set-uid bits.
        if (seen.uid, seen.gid) != (uid, uid):
            os.chown(itself, uid, uid)
        if (mode := _mode(seen)) != stat.S_IMODE(seen.mode) or seen.uid != uid:
            os.chmod(itself, mode)


def _wrong_folders(home: Path, uid: int, web_server: int) -> Iterator[WrongRights]:
    for name, mode, gid in (
        ("", 0o710, web_server),
        ("public", 0o755, uid),
        ("private", 0o700, uid),
        ("tmp", 0o700, uid),
    ):
        path = home / name
        shown = name or "The home"
        try:
            there = path.lstat()
        except FileNotFoundError:
            if name == "tmp":
                yield WrongRights(f"The folder {path} of the site is gone.")
                continue
            words = f"The folder {path} of the site is gone: restore the site from a backup."
            yield WrongRights(words, mendable=False, lost=True)
            if path == home:
                return
            continue
        if not stat.S_ISDIR(there.st_mode):
            yield WrongRights(f"{shown} is not a folder.", mendable=False)
        elif (there.st_uid, there.st_gid) != (uid, gid):
            yield WrongRights(f"{shown} belongs to {there.st_uid}:{there.st_gid}, not to {uid}:{gid}.")
        elif stat.S_IMODE(there.st_mode) != mode:
            yield WrongRights(f"{shown} has the mode {stat.S_IMODE(there.st_mode):04o}, not {mode:04o}.")


def _summed_up(wrong: Iterator[WrongRights]) -> Iterator[WrongRights]:
    """The first problems, and one that counts all others."""
    yield from islice(wrong, _MOST_NAMED)
    count, mendable = 0, False
    for each in wrong:
        count += 1
        mendable = mendable or each.mendable
    if count:
        yield WrongRights(f"{count:,} more of the kind.", mendable, count=count)


def _wrong_files(home: Path, uid: int) -> Iterator[WrongRights]:
    for seen in _below(home):
        words = _words(seen, uid)
        if words is not None:
            yield WrongRights(f"{_shortened(seen.path)} {words}.", mendable=not _is_left(seen, uid))


def _words(seen: _Seen, uid: int) -> str | None:
    mode = stat.S_IMODE(seen.mode)
    if stat.S_ISLNK(seen.mode):
        return None  # A link's owner and mode have no effect.
    if _foreign_link(seen, uid):
        return f"is a file of the user {seen.uid} that has {seen.links} names: remove this one of them"
    if (seen.uid, seen.gid) != (uid, uid):
        return f"belongs to {seen.uid}:{seen.gid}, not to {uid}:{uid}"
    if seen.is_file and mode & (stat.S_ISUID | stat.S_ISGID):
        return f"has the mode {mode:04o}: who runs it would be somebody else"
    if _mode(replace(seen, served=False)) != mode:
        return f"has the mode {mode:04o}: its owner may not read it"
    if _mode(seen) != mode:
        return f"has the mode {mode:04o}: the web server may not read it, so visitors get an error"
    if seen.is_folder and seen.served:
        return f"has the mode {mode:04o}: visitors reach nothing in it; allow others to enter it (o+x) if they should"
    return None


def _is_left(seen: _Seen, uid: int) -> bool:
    """Whether a problem is left to the site's owner. A folder may be closed on purpose, and opening it could make other
    files in it public."""
    closed = seen.is_folder and seen.served and stat.S_IMODE(seen.mode) & 0o500 == 0o500
    return _foreign_link(seen, uid) or (closed and (seen.uid, seen.gid) == (uid, uid))


def _foreign_link(seen: _Seen, uid: int) -> bool:
    return not seen.is_folder and seen.links > 1 and seen.uid != uid


def _mode(seen: _Seen) -> int:
    """The mode that the entry should have. It is the current one if the entry's owner can read the entry and, if it is
    served, the web server can, too."""
    mode = stat.S_IMODE(seen.mode)
    if seen.is_folder:
        return mode if mode & 0o500 == 0o500 else 0o755
    if not seen.is_file:
        return mode
    mode &= ~(stat.S_ISUID | stat.S_ISGID)
    return (mode if mode & 0o400 else 0o644) | (_READABLE if seen.served else 0)


def _below(home: Path) -> Iterator[_Seen]:
    left = _MOST
    for name in _FOLDERS:
        try:
            descriptor = _open_folder(None, home / name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # That it is missing was already reported with the home.
        for seen in _inside(descriptor, name, 1):
            yield seen
            left -= 1
            if left == 0:
                return


def _inside(folder: int, path: str, depth: int) -> Iterator[_Seen]:
    """All entries below a folder, whose descriptor is then closed. An entry comes before its content."""
    try:
        for name in sorted(os.listdir(folder)):
            try:
                descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                continue  # The entry was removed meanwhile.
            try:
                there = os.fstat(descriptor)
                shown = f"{path}/{_printable(name)}"
                served = shown.startswith("public/") and _is_served(descriptor, name, there.st_mode)
                seen = _Seen(descriptor, shown, there.st_uid, there.st_gid, there.st_mode, there.st_nlink, served)
                yield seen
                if seen.is_folder and depth < _DEEPEST:
                    yield from _inside(_open_folder(descriptor, "."), shown, depth + 1)
            finally:
                os.close(descriptor)
    finally:
        os.close(folder)


def _is_served(descriptor: int, name: str, mode: int) -> bool:
    """A folder that has files for visitors is served, unless it has an .htaccess file: Nextcloud closes its data by
    both, and refuses to work when others can enter."""
    if stat.S_ISREG(mode):
        return _ASSET.fullmatch(name) is not None
    if not stat.S_ISDIR(mode) or mode & 0o001 or name.startswith("."):
        return False
    folder = _open_folder(descriptor, ".")
    try:
        names = os.listdir(folder)
    finally:
        os.close(folder)
    return ".htaccess" not in names and any(_ASSET.fullmatch(each) for each in names)


def _open_folder(parent: int | None, path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _printable(name: str) -> str:
    return name.encode(errors="backslashreplace").decode(errors="replace") if name.isprintable() else repr(name)


def _shortened(path: str) -> str:
    """A long path without its middle, so that folder and name can be read."""
    half = _LONGEST_PATH // 2
    return path if len(path) <= _LONGEST_PATH else f"{path[:half]} ... {path[-half:]}"


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["look", home, uid, web_server]:
                for each in wrong_rights(Path(home), int(uid), int(web_server)):
                    print(json.dumps(asdict(each)))
            case ["mend", home, uid]:
                repair_rights(Path(home), int(uid))
            case _:
                raise ValueError(f"unknown order: {arguments}")
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
