"""A site's tree as a list: `python -I -S manifest.py scan|compare|settle|verify ARGUMENT...`

A manifest is a text file, a JSON object a line for each entry: `p` path, `t` type (`f`, `d`, `l`), `m` mode, and of a
file `s` size, `h` SHA-256, of a link `l` its target. `n` (modified), `c` (changed), both in nanoseconds, and `i`
(inode) show whether a file has changed since. Names that are not UTF-8 have lone surrogates (PEP 383).

- `scan` lists a tree. A file with the same size, times and inode as in the previous manifest is not read again;
- `compare` looks at a scanned tree again after its snapshot was made: if every entry has the same times, size and
  inode, the manifest is that of the snapshot;
- `settle`, if something has changed, adapts the manifest to the snapshot: an entry of a changed file gets the
  snapshot's size and mode, and no SHA-256, since restic's own checksums cover the content;
- `verify` gives a restored tree to its account and compares it with the manifest, byte for byte.

It runs as a separate program, so that a large site does not load the core or use its memory. Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
LEFT_OUT = frozenset({".svc-tmp", "tmp", "private/.svc-import"})
"""Folders of a site's home that are left out: unfinished and temporary files, and files that an import keeps there
until they are used."""
NAMED = 50
"""How many entries a message about a tree names."""
_SHOWN = 200
"""How many characters of a path a message about its length shows."""
_LONGEST_PATH = 4096
"""PATH_MAX: restic names each file by its whole path."""

Entry = dict[str, Any]


def scan(root: str, uid: int, before: str | None, target: str, excluded: str) -> Entry:
    """List everything below `root` in the file `target`. `excluded` becomes a list of restic patterns for what is left
    out: pipes, sockets and devices, and hard links to files of other accounts."""
    known = {entry["p"]: entry for entry in read(before)} if before else {}
    told: Entry = {"files": 0, "bytes": 0, "new_bytes": 0, "left_out": 0, "named": []}
    with open(target, "w") as listed, open(excluded, "w") as patterns:
        patterns.writelines(pattern(os.path.join(root, name)) + "\n" for name in sorted(LEFT_OUT))
        for path, found in _walk(root):
            entry = _entry(path, found, root, uid)
            if entry is None:
                told["left_out"] += 1
                if len(told["named"]) < NAMED:
                    told["named"].append(_shown(path))
                patterns.write(pattern(os.path.join(root, path)) + "\n")
                continue
            if entry["t"] == "f":
                told["files"] += 1
                told["bytes"] += entry["s"]
                old = known.get(path)
                if old is not None and "h" in old and all(old.get(key) == entry[key] for key in "sncit"):
                    entry["h"] = old["h"]
                else:
                    told["new_bytes"] += entry["s"]
                    if not _read_content(os.path.join(root, path), entry):
                        continue  # The file was removed, or replaced by something that is not a file.
            listed.write(json.dumps(entry, separators=(",", ":")) + "\n")
    return told


def compare(root: str, uid: int, manifest: str, excluded: str) -> Entry:
    """Entries that have `changed` below `root` since the scan: different, new, or removed. `files` and `bytes` are
    those of the manifest."""
    scanned = {entry["p"]: entry for entry in read(manifest)}
    left_out = set(Path(excluded).read_text().splitlines())
    files = [entry for entry in scanned.values() if entry["t"] == "f"]
    told: Entry = {"files": len(files), "bytes": sum(entry["s"] for entry in files), "changed": 0}
    for path, found in _walk(root):
        entry = _entry(path, found, root, uid)
        before = scanned.pop(path, None)
        if entry is None:
            told["changed"] += before is not None or pattern(os.path.join(root, path)) not in left_out
        else:
            told["changed"] += before is None or any(before.get(key) != value for key, value in entry.items())
    told["changed"] += len(scanned)
    return told


def settle(manifest: str, nodes: str, above: str, target: str) -> Entry:
    """`nodes`: restic's list of the snapshot; `above`: the folder in the snapshot with the tree."""
    scanned = {lossy(entry["p"]): entry for entry in read(manifest)}
    told: Entry = {"files": 0, "bytes": 0, "changed": 0}
    with open(target, "w") as settled, open(nodes, errors="replace") as lines:
        for line in lines:
            node = json.loads(line)
            path = node.get("path", "")
            if node.get("struct_type") != "node" or not path.startswith(f"/{above}/"):
                continue
            kind = {"file": "f", "dir": "d", "symlink": "l"}.get(node["type"])
            if kind is None:
                continue
            name = path[len(above) + 2 :]
            entry = scanned.get(name)
            made = {"p": entry["p"] if entry else name, "t": kind, "m": _mode(node["mode"]), "s": node.get("size", 0)}
            seen = (nanoseconds(node["mtime"]), nanoseconds(node["ctime"]))
            if entry is not None and entry["t"] == kind and (entry["n"], entry["c"]) == seen:
                made |= {key: entry[key] for key in ("h", "l", "n", "c", "i") if key in entry}
            elif kind != "d":
                told["changed"] += 1
            if kind == "f":
                told["files"] += 1
                told["bytes"] += made["s"]
            else:
                del made["s"]
            settled.write(json.dumps(made, separators=(",", ":")) + "\n")
    return told


def verify(tree: str, manifest: str, below: str, uid: int, gid: int) -> Entry:
    """Give the tree to the account, then compare it: the part `below` a path of the manifest, or that path itself; with
    an empty one, everything. Pipes are removed: backups do not have them. Returns `wrong`, how many entries differ."""
    told: Entry = {"entries": 0, "wrong": 0, "named": []}

    def differs(path: str, how: str) -> None:
        told["wrong"] += 1
        if len(told["named"]) < NAMED:
            told["named"].append(f"{_shown(path)}: {how}")

    wanted = {
        entry["p"]: entry
        for entry in read(manifest)
        if not below or entry["p"] == below or entry["p"].startswith(f"{below}/")
    }
    above = {below[:place] for place, letter in enumerate(below) if letter == "/"}
    for path, found in _walk(tree, everything=True):
        full = os.path.join(tree, path)
        entry = wanted.pop(path, None)
        if entry is None:
            if stat.S_IFMT(found.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                os.unlink(full)
            elif path not in above:
                differs(path, "was not in the site when it was backed up")
            continue
        told["entries"] += 1
        os.lchown(full, uid, gid)
        kind = _kind(found)
        if kind != entry["t"]:
            differs(path, "is of another kind")
            continue
        if kind == "l":
            if "l" in entry and os.readlink(full) != entry["l"]:
                differs(path, "leads elsewhere")
            continue
        # The mode is set after the owner, because changing the owner clears the set-uid bits.
        os.chmod(full, entry["m"])
        found = os.lstat(full)
        if (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (uid, gid, entry["m"]):
            differs(path, "has another owner or another mode")
        if kind == "f":
            if found.st_size != entry["s"]:
                differs(path, f"has {found.st_size:,} bytes instead of {entry['s']:,}")
            elif "h" in entry and _sha256(full) != entry["h"]:
                differs(path, "has another content")
    for path in wanted:
        differs(path, "is missing")
    if below and told["entries"] == 0:
        differs(below, "is not in this backup")
    return told


def read(manifest: str) -> Iterator[Entry]:
    with open(manifest) as lines:
        for line in lines:
            yield json.loads(line)


def size_below(manifest: str, below: str) -> int:
    """The bytes of the files that `verify` would compare."""
    return sum(
        entry.get("s", 0)
        for entry in read(manifest)
        if not below or entry["p"] == below or entry["p"].startswith(f"{below}/")
    )


def files_and_bytes(manifest: str) -> tuple[int, int]:
    """How many files it lists, and their bytes."""
    sizes = [entry.get("s", 0) for entry in read(manifest) if entry["t"] == "f"]
    return len(sizes), sum(sizes)


def lossy(path: str) -> str:
    """A name in the form of restic's JSON: each byte that is not UTF-8 as U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", path)


def pattern(path: str) -> str:
    """A pattern for restic that matches this path. Characters that are special in its pattern files (blanks, line
    breaks, variables) become wildcards."""
    return re.sub(r"[\s$\ufffd]", "?", re.sub(r"([\\*?\[\]])", r"\\\1", _shown(path)))


def nanoseconds(text: str) -> int:
    """Nanoseconds of Go's RFC 3339, which has up to nine places and any zone."""
    whole, point, rest = text.partition(".")
    places = re.match(r"\d*", rest).group() if point else ""  # type: ignore[union-attr]
    zone = rest[len(places) :] if point else ""
    return int(datetime.fromisoformat((whole + zone).replace("Z", "+00:00")).timestamp()) * 10**9 + int(
        places.ljust(9, "0") or 0
    )


def _walk(root: str, *, everything: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below `root` with its relative path, folders before their content. Links are not followed."""
    left = [""]
    while left:
        above = left.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, above)), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # The entry was removed meanwhile.
        for entry in entries:
            path = f"{above}/{entry.name}" if above else entry.name
            if not everything and path in LEFT_OUT:
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                left.append(path)


def _entry(path: str, found: os.stat_result, root: str, uid: int) -> Entry | None:
    kind = _kind(found)
    if kind is None or (kind == "f" and found.st_nlink > 1 and found.st_uid != uid):
        return None
    entry: Entry = {"p": path, "t": kind, "m": stat.S_IMODE(found.st_mode)}
    if kind == "f":
        entry["s"] = found.st_size
    elif kind == "l":
        try:
            entry["l"] = os.readlink(os.path.join(root, path))
        except OSError:  # The entry was replaced; `settle` finds the change.
            entry["l"] = ""
    entry |= {"n": found.st_mtime_ns, "c": found.st_ctime_ns, "i": found.st_ino}
    return entry


def _kind(found: os.stat_result) -> str | None:
    return {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(stat.S_IFMT(found.st_mode))


def _read_content(path: str, entry: Entry) -> bool:
    """The SHA-256 of a file, and its size and times when it was read. Opening does not block."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            return False
        digest = hashlib.sha256()
        while block := os.read(file, BLOCK):
            digest.update(block)
        after = os.fstat(file)
        entry |= {"s": after.st_size, "n": after.st_mtime_ns, "c": after.st_ctime_ns, "i": after.st_ino}
        if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (entry["s"], entry["n"], entry["c"]):
            entry["h"] = digest.hexdigest()
        return True
    finally:
        os.close(file)


def _sha256(path: str) -> str:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mode(mode: int) -> int:
    """Go stores set-uid, set-gid and sticky in other bits than the kernel (io/fs, FileMode)."""
    bits = mode & 0o777
    for go, unix in ((1 << 23, stat.S_ISUID), (1 << 22, stat.S_ISGID), (1 << 20, stat.S_ISVTX)):
        bits |= unix if mode & go else 0
    return bits


def _shown(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="replace")


def main() -> None:
    try:
        told = _do(sys.argv[1], sys.argv[2:])
    except OSError as error:
        where = _shown(str(error.filename)) if error.filename else "the files"
        if error.errno == errno.ENAMETOOLONG:
            raise SystemExit(
                f"Folders are nested too deeply: the path of {where[:_SHOWN]}... is longer than {_LONGEST_PATH:,} "
                "bytes, which no backup can store. Remove them, or move what is in them further up."
            ) from error
        raise SystemExit(f"{where} could not be accessed: {error.strerror}") from error
    print(json.dumps(told))


def _do(kind: str, arguments: list[str]) -> Entry:
    match kind:
        case "scan":
            root, uid, before, target, excluded = arguments
            return scan(root, int(uid), before or None, target, excluded)
        case "compare":
            root, uid, manifest, excluded = arguments
            return compare(root, int(uid), manifest, excluded)
        case "settle":
            manifest, nodes, above, target = arguments
            return settle(manifest, nodes, above, target)
        case "verify":
            tree, manifest, below, uid, gid = arguments
            return verify(tree, manifest, below, int(uid), int(gid))
        case _:
            raise SystemExit(f"{kind} is nothing that {Path(__file__).name} does")


if __name__ == "__main__":
    main()
