"""Archives of strangers: what is no archive of an account is refused whole, and what leads out of one is not made."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import MAIN, Packer
from tests.support.surveys import read_archive

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the reader becomes another account")

PUBLIC: Final = f"{MAIN}/htdocs"


def packed(*more: Callable[[Packer], None]) -> bytes:
    archive = Packer()
    archive.file(f"{PUBLIC}/index.php", "<?php")
    for each in more:
        each(archive)
    return archive.gzipped()


def repeated(begin: bytes, piece: bytes, times: int) -> bytes:
    """Gzip of `begin`, and of a piece again and again, which is compressed once: after a full flush, a part of a stream
    refers to nothing before it."""
    checksum = zlib.crc32(begin)
    for _ in range(times):
        checksum = zlib.crc32(piece, checksum)
    first, more, last = (zlib.compressobj(9, zlib.DEFLATED, bits) for bits in (31, -15, -15))
    parts = [first.compress(begin), first.flush(zlib.Z_FULL_FLUSH)]
    parts += [more.compress(piece), more.flush(zlib.Z_FULL_FLUSH)] * times
    length = len(begin) + times * len(piece)
    return b"".join([*parts, last.flush(), struct.pack("<LL", checksum, length & 0xFFFFFFFF)])


def bomb() -> bytes:
    """A gigabyte in a megabyte."""
    archive = Packer()
    archive.file(f"{PUBLIC}/index.php", "<?php")
    header = tarfile.TarInfo(f"{PUBLIC}/zeros")
    header.size = 1 << 30
    return repeated(archive.whole()[:1024] + header.tobuf(), bytes(1 << 20), 1 << 10)


def many() -> bytes:
    """A million entries."""
    return repeated(b"", tarfile.TarInfo(f"{PUBLIC}/x").tobuf() * 1000, 1000)


def numbered(count: int) -> Iterator[bytes]:
    """Entries that differ in the six digits at the end of their names, and in their checksums."""
    name = f"{PUBLIC}/000000"
    entry, digits_at = tarfile.TarInfo(name).tobuf(), len(name) - 6
    rest = int(entry[148:154], 8) - sum(b"000000")
    for number in range(count):
        digits = b"%06d" % number
        yield entry[:digits_at] + digits + entry[len(name) : 148] + b"%06o" % (rest + sum(digits)) + entry[154:]


REFUSED: Final[dict[str, tuple[Callable[[], bytes], str]]] = {
    "a name that leads out": (lambda: packed(lambda a: a.file("../../etc/cron.d/x", "x")), "leads out"),
    "an absolute name": (lambda: packed(lambda a: a.file("/etc/cron.d/x", "x")), "leads out"),
    "a device": (lambda: packed(lambda a: a.link(f"{PUBLIC}/sda", "", tarfile.BLKTYPE)), "not a file, folder or link"),
    "a pipe": (lambda: packed(lambda a: a.link(f"{PUBLIC}/pipe", "", tarfile.FIFOTYPE)), "not a file, folder or link"),
    "a file that becomes a link": (
        lambda: packed(lambda a: a.file(f"{PUBLIC}/x", "x"), lambda a: a.link(f"{PUBLIC}/x", "/etc/passwd")),
        "twice",
    ),
    "a name of a thousand folders": (lambda: packed(lambda a: a.file("a/" * 1000 + "x", "x")), "too long"),
    "a long name": (lambda: packed(lambda a: a.file("x" * 300, "x")), "too long"),
    "a bomb": (bomb, "would unpack to more"),
    "a million entries": (many, "twice"),
    "no archive": (lambda: b"<html>404</html>" * 100, "not a supported archive"),
    "a damaged one": (lambda: packed()[:-30], "damaged"),
    "one that ends early": (lambda: gzip.compress(gzip.decompress(packed())[:700]), "ends early"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_hostile_archive_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    make, why = REFUSED[kind]
    archive = tmp_path / "archive"
    archive.write_bytes(make())

    status, said, found = read_archive(archive)

    assert (status, found) == (3, None), said
    assert why in said, said


def test_an_archive_of_more_entries_than_an_account_has_is_refused(tmp_path: Path) -> None:
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    entries = map(squeeze.compress, numbered(250_002))
    (tmp_path / "archive").write_bytes(b"".join([*entries, squeeze.flush()]))

    status, said, _ = read_archive(tmp_path / "archive")

    assert status == 3
    assert "250,000 entries" in said


def test_links_that_lead_out_are_named_and_no_reason_to_refuse_a_backup(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(foreign.cpanel(foreign.model()))

    status, said, found = read_archive(tmp_path / "archive")

    assert status == 0, said
    assert found is not None
    left = {each["name"].rpartition("/")[2]: each["reason"] for each in found["left"] if each["kind"] == "files"}
    assert left == {"passwd": "the link leads to /etc/passwd, which is not imported with the site"}


def test_the_reader_may_open_nothing_and_becomes_nobody(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(packed())
    (tmp_path / "archive").chmod(0o600)

    status, said, found = read_archive(tmp_path / "archive")

    assert status == 0, said
    assert found is not None
    assert [site["domain"] for site in found["sites"]] == [MAIN]
