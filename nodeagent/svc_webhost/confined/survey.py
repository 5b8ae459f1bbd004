"""Reports what an archive of another host holds, and can do nothing else: `python -I -S confined/survey.py ORDER`

The archive is standard input. The order is a JSON object: `uid` and `gid`, of an account that owns nothing. Before the
first byte is read this process becomes that account, and Landlock lets it open no file, connect nowhere and execute
nothing; its memory is limited. Its answer is lines that start with `part `, which together are one JSON object.

A single bad entry refuses the whole archive: a name that leads out, a device, a duplicate name, or anything beyond the
limits of an archive (`archive_formats.Budget`). A link that leads out is accepted, since every home of cPanel has one:
it is not followed, not created, and reported.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.apache.passwords import MOST_BYTES
from svc_webhost.archives import htaccess, passwords, reading
from svc_webhost.archives.model import Account, Survey
from svc_webhost.archives.model import Kind as ItemKind
from svc_webhost.archives.placing import link_target, placed_at
from svc_webhost.confined import kernel
from svc_webhost.confined.archive_formats import MAX_TARGET, Budget, Kind, Member, understood
from svc_webhost.confined.extract import names_of
from svc_webhost.confined.layers import Zstd, entries
from svc_webhost.confined.protocol import Failed, FileError
from svc_webhost.confined.zip_names import CODECS
from svc_webhost.htaccess.situation import INDEXES

PART: Final = "part "
_PART_LENGTH: Final = 8000
_REFUSED: Final = 3
_MOST_TEXT: Final = 1 << 20
_MOST_TEXTS: Final = 8 << 20
_MOST_FOLDERS: Final = 8 << 20
"""The most bytes of the names of all folders together."""
_MOST_RULES: Final = 20_000
_MOST_LINKS: Final = 20_000
_NAMED_LINKS: Final = 50
_LIMITS: Final = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_DATA: 256 << 20,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
}


def main() -> int:
    order = json.loads(sys.argv[1])
    try:
        confine(order["uid"], order["gid"])
        with os.fdopen(0, "rb", buffering=1 << 20) as archive, understood():
            account = survey(archive, order.get("settings"))
    except FileError as error:
        print(shown(error.message), flush=True)
        return _REFUSED
    except OSError as error:
        print(f"The archive cannot be read here: {error}.", flush=True)
        return _REFUSED
    text = json.dumps(_plain(account.record()))
    for begin in range(0, len(text), _PART_LENGTH):
        print(PART + text[begin : begin + _PART_LENGTH])
    sys.stdout.flush()
    return 0


def confine(uid: int, gid: int, root: int | None = None) -> None:
    """Become the account, with access below the descriptor `root`, or to no file at all."""
    if uid == 0 or gid == 0:
        raise FileError(Failed.REFUSED, "An archive is never read as root.")
    Zstd.load()
    for name in ("ascii", "latin-1", *CODECS):
        # Encodings are Python modules, which can no longer be loaded after the process is confined.
        codecs.lookup(name)
    for limit, most in _LIMITS.items():
        if root is None or limit is not resource.RLIMIT_FSIZE:
            resource.setrlimit(limit, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.refuse_new_privileges()
    os.umask(0o022)
    abi = kernel.landlock_abi()
    if abi < kernel.LOWEST_ABI:
        raise FileError(
            Failed.BROKEN,
            f"This kernel cannot confine an archive: it has Landlock {abi}, and {kernel.LOWEST_ABI} is needed.",
        )
    if root is None:
        kernel.landlock_reading([], [], abi)
    else:
        kernel.landlock(root, abi)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def survey(archive: BinaryIO, settings: Mapping[str, Any] | None = None) -> Account:
    """`settings` that PHP has in a new site; None: not known. Raises FileError."""
    budget = Budget(os.fstat(archive.fileno()).st_size)
    gathered = _Gathered()
    for member in entries(archive, budget, lambda name: reading.nested(os.fsdecode(name))):
        gathered.take(member)
    found = gathered.finished()
    account = reading.read(found)
    _name_links(account, gathered.links)
    sought = passwords.password_candidates(found, account, gathered.links)
    contents = _contents(archive, {file for each in sought for file in each.files})
    account.passwords = [each.resolve(contents) for each in sought]
    account.rules = htaccess.judged_rules(found, account, contents, settings)
    return account


def _contents(archive: BinaryIO, wanted: set[str]) -> dict[str, bytes]:
    """The starts of these files, if the archive has them. The archive is read a second time, since it is known only now
    which files are needed."""
    contents: dict[str, bytes] = {}
    if not wanted:
        return contents
    budget, left = Budget(os.fstat(archive.fileno()).st_size), _MOST_TEXTS
    for member in entries(archive, budget, lambda name: reading.nested(os.fsdecode(name))):
        path = os.fsdecode(b"/".join(names_of(member)))
        kept = bytearray()
        for block in member.content:
            if path in wanted:
                kept += block[: MOST_BYTES + 1 - len(kept)]
        left -= len(kept)
        if path in wanted and member.kind is Kind.FILE and left >= 0:
            contents[path] = bytes(kept)
    return contents


class _Gathered:
    def __init__(self) -> None:
        self._survey = Survey()
        self._seen: set[int] = set()
        self._own: dict[str, list[int]] = {}
        self._contents: dict[bytes, bytes] = {}
        self._texts = self._folders = 0
        self.links: list[tuple[str, str]] = []

    def take(self, member: Member) -> None:
        names = names_of(member)
        if not names:
            return
        path = os.fsdecode(b"/".join(names))
        self._survey.entries += 1
        if member.kind is Kind.FOLDER:
            self._folder(path)
            return
        known = hash(path)
        if known in self._seen:
            raise FileError(Failed.REFUSED, f"The archive has {path[:200]} twice.")
        self._seen.add(known)
        if member.kind is Kind.LINK:
            if len(self.links) < _MOST_LINKS:
                self.links.append((path, os.fsdecode(member.target[:MAX_TARGET])))
            return
        if reading.marked(path):
            self._survey.marks.add(path)
        folder, _, name = path.rpartition("/")
        if name in INDEXES:
            self._survey.pages.setdefault(folder, []).append(name)
        counted = self._folder(folder)
        counted[0] += 1
        counted[1] += self._content(path, member)

    def _folder(self, path: str) -> list[int]:
        found = self._own.get(path)
        if found is None:
            self._folders += len(path) + 100
            if self._folders > _MOST_FOLDERS * 8:
                raise FileError(Failed.REFUSED, "The archive has more folders than a home has.")
            found = self._own[path] = [0, 0]
        return found

    def _content(self, path: str, member: Member) -> int:
        size, kept = 0, bytearray()
        keep = reading.needs_content(path)
        for block in member.content:
            size += len(block)
            if keep and len(kept) + len(block) <= _MOST_TEXT and self._texts + len(kept) + len(block) <= _MOST_TEXTS:
                kept += block
            else:
                keep = False
        if passwords.WANTED.fullmatch(path) is not None:
            self._rule(path, bytes(kept) if keep else None)
        if keep and not passwords.names_no_password_file(path, kept):
            self._texts += len(kept)
            self._survey.texts[path] = bytes(kept)
        self._survey.size += size
        return size

    def _rule(self, path: str, content: bytes | None) -> None:
        """Keep an .htaccess file for its verdict. An archive has thousands with the same content, which is kept
        once."""
        if content is None or len(self._survey.rules) >= _MOST_RULES:
            self._survey.whole = False
            return
        if content not in self._contents:
            self._contents[content] = content
            self._texts += len(content)
        self._survey.rules[path] = self._contents[content]

    def finished(self) -> Survey:
        self._survey.links = dict(self.links)
        for path, (files, size) in self._own.items():
            while True:
                before = self._survey.folders.get(path, (0, 0))
                self._survey.folders[path] = (before[0] + files, before[1] + size)
                if not path:
                    break
                path = path.rpartition("/")[0]
        return self._survey


def _name_links(account: Account, links: Iterable[tuple[str, str]]) -> None:
    left = 0
    for path, target in links:
        for site in account.sites:
            if placed_at(site, path) is None or link_target(site, path, target) is not None:
                continue
            left += 1
            if left <= _NAMED_LINKS:
                reason = f"the link leads to {target[:100]}, which is not imported with the site"
                account.leave(ItemKind.FILES, path, reason)
    if left > _NAMED_LINKS:
        account.leave(ItemKind.FILES, f"{left - _NAMED_LINKS} links more", "they lead to what is not imported")


def shown(text: str) -> str:
    return text.encode(errors="replace").decode(errors="replace")


def _plain(value: Any) -> Any:
    """Text that a database can store: without lone surrogates and control characters."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF else "\ufffd" for c in value[:4096])
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
