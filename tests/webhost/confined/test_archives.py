"""What archives may not do; and that one which is refused has left nothing behind."""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from svc_webhost.confined import archive_formats, compress, extract
from svc_webhost.confined.protocol import Compress, Extract, Failed, FileError
from svc_webhost.confined.tree import Tree


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside").mkdir()
    return home


@pytest.fixture
def tree(home: Path) -> Iterator[Tree]:
    root = os.open(home, os.O_PATH | os.O_DIRECTORY)
    yield Tree(root)
    os.close(root)


Entry = tuple[str, bytes | None, dict[str, object]]


def entry(name: str, content: bytes | None = b"x", **facts: object) -> Entry:
    return name, content, facts


def tar(*entries: Entry, mode: str = "w") -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content, facts in entries:
            info = tarfile.TarInfo(name)
            for key, value in facts.items():
                setattr(info, key, value)
            if content is not None:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return into.getvalue()


def zipped(*entries: Entry) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, facts in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            mode = facts.get("mode", 0o644)
            assert isinstance(mode, int)
            info.external_attr = mode << 16
            archive.writestr(info, content or b"")
    return into.getvalue()


def link(name: str, target: str) -> Entry:
    return entry(name, None, type=tarfile.SYMTYPE, linkname=target)


def zip_link(name: str, target: str) -> Entry:
    return entry(name, target.encode(), mode=stat.S_IFLNK | 0o777)


HOSTILE = {
    "a name that climbs": tar(entry("../outside/evil")),
    "a name that climbs, zip": zipped(entry("../outside/evil")),
    "a name that climbs on its way": tar(entry("a/../../outside/evil")),
    "an absolute name": tar(entry("/tmp/evil")),
    "an absolute name, zip": zipped(entry("/tmp/evil")),
    "a link out": tar(link("way", "../outside"), entry("way/evil")),
    "a link out, zip": zipped(zip_link("way", "../outside"), entry("way/evil")),
    "an absolute link": tar(link("way", "/etc/passwd")),
    "a link out from a folder": tar(link("a/b/way", "../../../outside")),
    "a link out by another link": tar(link("a", "b/../.."), entry("c")),
    "a hard link out": tar(entry("way", None, type=tarfile.LNKTYPE, linkname="../outside/secret")),
    "an absolute hard link": tar(entry("way", None, type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "a hard link to nothing": tar(entry("way", None, type=tarfile.LNKTYPE, linkname="missing")),
    "a hard link through a link": tar(
        link("d", "."), entry("way", None, type=tarfile.LNKTYPE, linkname="d/../../outside/secret")
    ),
    "a folder that becomes a link": tar(entry("way/file"), link("way", ".")),
    "a hard link to itself": tar(entry("way"), entry("way", None, type=tarfile.LNKTYPE, linkname="way")),
    "a device": tar(entry("disk", None, type=tarfile.BLKTYPE, devmajor=8, devminor=0)),
    "a terminal": tar(entry("tty", None, type=tarfile.CHRTYPE, devmajor=5, devminor=0)),
    "a pipe": tar(entry("pipe", None, type=tarfile.FIFOTYPE)),
    "a device, zip": zipped(entry("disk", b"", mode=stat.S_IFBLK | 0o666)),
    "an overlong name": tar(entry("n" * 300)),
    "an overlong path": tar(entry("/".join(["folder"] * 700))),
    "too many levels": zipped(entry("/".join(["d"] * 150) + "/f")),
    "a file where a folder is": tar(entry("a/b"), entry("a")),
    "a folder where a file is": tar(entry("a"), entry("a/b")),
}


@pytest.mark.parametrize("archive", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused_whole(tree: Tree, home: Path, archive: bytes) -> None:
    (home / "a.archive").write_bytes(archive)

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("a.archive", "unpacked", False))

    assert refused.value.code is Failed.REFUSED
    assert sorted(os.listdir(home)) == [".svc-tmp", "a.archive"]
    assert os.listdir(home / ".svc-tmp") == []
    assert os.listdir(home.parent / "outside") == []


def test_an_archive_may_not_grow_past_its_ratio(tree: Tree, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_formats, "ALWAYS_ALLOWED", 1 << 20)
    zeros = bytes(4 << 20)
    bombs = {"zip": zipped(entry("zeros", zeros))}
    bombs |= {mode: tar(entry("zeros", zeros), mode=mode) for mode in ("w:gz", "w:bz2", "w:xz")}

    messages = []
    for name, bomb in bombs.items():
        (home / name).write_bytes(bomb)
        with pytest.raises(FileError) as refused:
            extract.extract(tree, Extract(name, "unpacked", False))
        messages.append(refused.value.message)

    assert all("200 times its size" in message for message in messages)
    assert os.listdir(home / ".svc-tmp") == []


def test_entries_that_share_their_bytes_are_counted_each(
    tree: Tree, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bomb that names one compressed stream from many entries of the directory."""
    monkeypatch.setattr(archive_formats, "ALWAYS_ALLOWED", 8 << 20)
    content = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    facts = (20, 0, 8, 0, 33, zlib.crc32(content), len(packed), len(content))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", *facts, 1, 0) + b"x" + packed
    directory = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, *facts, 1, 0, 0, 0, 0, 0, 0) + b"x" for _ in range(1000)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1000, 1000, len(directory), len(local), 0)
    (home / "bomb").write_bytes(local + directory + end)

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("bomb", "unpacked", False))

    # Python with the fix of CVE-2019-9674 sees that they overlap.
    assert refused.value.code in (Failed.REFUSED, Failed.INVALID)
    assert not (home / "unpacked").exists()


def _many_in_a_tar() -> bytes:
    block = tar(entry("", None, type=tarfile.DIRTYPE))[:512]
    return block * 100_001


def _many_in_a_zip() -> bytes:
    one = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0)
    directory = b"".join(one + b"%08d" % number for number in range(100_000))
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 10**5, 10**5, len(directory), 4)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 4 + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return b"PK\3\4" + directory + end64 + locator + end


@pytest.mark.parametrize("archive", [_many_in_a_tar, _many_in_a_zip])
def test_too_many_entries_are_refused_before_they_are_kept(
    tree: Tree, home: Path, monkeypatch: pytest.MonkeyPatch, archive: Callable[[], bytes]
) -> None:
    assert archive_formats.MAX_ENTRIES == 250_000
    monkeypatch.setattr(archive_formats, "MAX_ENTRIES", 25_000)
    (home / "many").write_bytes(archive())

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("many", "unpacked", False))

    assert "25,000 entries" in refused.value.message


def test_a_header_that_promises_a_huge_name_is_refused_unread(tree: Tree, home: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (home / "huge").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(512))

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("huge", "unpacked", False))

    assert refused.value.code is Failed.REFUSED


BROKEN = {
    "empty": b"",
    "text": b"no archive at all" * 100,
    "cut tar": tar(entry("a", bytes(5000)))[:2000],
    "cut tar.gz": tar(entry("a"), mode="w:gz")[:-12],
    "cut zip": zipped(entry("a", bytes(5000)))[:-30],
    "head of zip": b"PK\3\4" + bytes(100),
    "head of gzip": b"\x1f\x8b" + bytes(50),
    "head of bzip2": b"BZh9" + bytes(50),
}


# By names: the bytes hold the time, and the ids of two processes have to be the same.
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_archive_or_ends_in_the_middle_is_told(tree: Tree, home: Path, content: bytes) -> None:
    (home / "broken").write_bytes(content)

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("broken", "unpacked", False))

    assert refused.value.code is Failed.INVALID
    assert os.listdir(home / ".svc-tmp") == []


@pytest.mark.parametrize("kind", ["zip", "w", "w:gz", "w:xz"])
def test_damage_anywhere_in_an_archive_is_refused_or_harmless(tree: Tree, home: Path, kind: str) -> None:
    entries = (entry("a/b", os.urandom(900)), entry("c" * 150), entry("é/日本", b"text" * 200))
    good = zipped(*entries) if kind == "zip" else tar(*entries, mode=kind)
    random = Random(kind)
    outcomes = set()

    for number in range(120):
        damaged = bytearray(good)
        for _ in range(random.randint(1, 8)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        if random.random() < 0.2:
            del damaged[random.randrange(len(damaged)) :]
        (home / "damaged").write_bytes(damaged)
        try:
            extract.extract(tree, Extract("damaged", f"out-{number}", False))
            outcomes.add("unpacked")
        except FileError as refused:
            outcomes.add(refused.code.value)
        assert os.listdir(home / ".svc-tmp") == []

    assert "invalid" in outcomes
    assert outcomes <= {"unpacked", "invalid", "refused"}
    assert os.listdir(home.parent / "outside") == []
    assert sorted(os.listdir(home.parent)) == ["home", "outside"]


def test_a_good_archive_keeps_names_that_differ_in_case_modes_times_and_inner_links(tree: Tree, home: Path) -> None:
    long = "deep/" + "n" * 200
    (home / "good.tar.xz").write_bytes(
        tar(
            entry("./site/index.html", b"lower", mode=0o4644, mtime=1_600_000_000),
            entry("./site/INDEX.HTML", b"upper"),
            entry("./site/tools/run", b"#!", mode=0o755),
            link("site/current", "tools/run"),
            entry("site/same", None, type=tarfile.LNKTYPE, linkname="./site/index.html"),
            entry(long, b"long"),
            entry("éäß/日本", b"text"),
            mode="w:xz",
        )
    )

    answer = extract.extract(tree, Extract("good.tar.xz", "unpacked", False))

    site = home / "unpacked" / "site"
    assert answer == {"entries": 7}
    assert {path.name for path in site.iterdir()} == {"index.html", "INDEX.HTML", "tools", "current", "same"}
    assert site.joinpath("index.html").stat().st_mode & 0o7777 == 0o644
    assert site.joinpath("index.html").stat().st_mtime == 1_600_000_000
    assert os.access(site / "current", os.X_OK)
    assert (site / "same").samefile(site / "index.html")
    assert (home / "unpacked" / long).read_bytes() == b"long"
    assert (home / "unpacked" / "éäß" / "日本").read_text() == "text"


def foreign_zip(system: int, *names: bytes) -> bytes:
    """With these bytes as names, and no flag that says how they are encoded."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(str(number) * len(name))
            info.create_system = system
            archive.writestr(info, b"" if name.endswith((b"/", b"\\")) else b"x")
    packed = into.getvalue()
    for number, name in enumerate(names):
        packed = packed.replace(str(number).encode() * len(name), name)
    return packed


# As Finder's "Compress" writes them (ZIPFoundation#63, tinyfilemanager#249), PowerShell 5's Compress-Archive
# (dotnet/core-setup#3577, codeclysm/extract#5), and an archiver of DOS.
@pytest.mark.parametrize(
    ("packed", "names"),
    [
        (
            foreign_zip(3, "grüße.txt".encode(), "bilder/日本.jpg".encode(), b"__MACOSX/._a.txt", b"a\\b.txt"),
            ["a\\b.txt", "bilder", "bilder/日本.jpg", "grüße.txt"],
        ),
        (
            foreign_zip(0, b"htdocs\\index.html", b"htdocs\\sub\\", b"htdocs\\sub\\a.txt"),
            ["htdocs", "htdocs/index.html", "htdocs/sub", "htdocs/sub/a.txt"],
        ),
        (
            foreign_zip(0, "grün.txt".encode("cp437"), "ärger/ß.txt".encode("cp437")),
            ["grün.txt", "ärger", "ärger/ß.txt"],
        ),
    ],
    ids=["macOS", "PowerShell", "DOS"],
)
def test_names_of_a_zip_are_read_as_they_were_meant(tree: Tree, home: Path, packed: bytes, names: list[str]) -> None:
    (home / "a.zip").write_bytes(packed)

    extract.extract(tree, Extract("a.zip", "unpacked", False))

    assert sorted(str(path.relative_to(home / "unpacked")) for path in (home / "unpacked").rglob("*")) == names


def test_a_way_out_by_backslashes_is_refused(tree: Tree, home: Path) -> None:
    (home / "a.zip").write_bytes(foreign_zip(0, b"..\\..\\outside\\evil"))

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("a.zip", "unpacked", False))

    assert refused.value.code is Failed.REFUSED


def v7(*entries: Entry) -> bytes:
    """Without the name of the format, as tar of Unix version 7 and `tar --format=v7` write it."""
    packed = bytearray(tar(*entries))
    for at in range(0, len(packed), 512):
        if packed[at + 257 : at + 262] == b"ustar":
            packed[at + 257 : at + 512] = bytes(255)
            packed[at + 148 : at + 156] = b" " * 8
            packed[at + 148 : at + 156] = b"%06o\0 " % sum(packed[at : at + 512])
    return bytes(packed)


@pytest.mark.parametrize(
    "packed",
    [v7(entry("a/b", b"x")), tar(entry("a/b", b"x"), mode="w:gz") + b"-----BEGIN PGP SIGNATURE-----"],
    ids=["v7", "signed gzip"],
)
def test_what_other_unpackers_take_is_taken(tree: Tree, home: Path, packed: bytes) -> None:
    (home / "a.tar").write_bytes(packed)

    extract.extract(tree, Extract("a.tar", "unpacked", False))

    assert (home / "unpacked/a/b").read_bytes() == b"x"


def test_unpacking_into_a_folder_replaces_only_when_that_is_said(tree: Tree, home: Path) -> None:
    (home / "public").mkdir()
    (home / "public" / "index.html").write_text("old")
    (home / "public" / "kept.html").write_text("kept")
    (home / "a.zip").write_bytes(zipped(entry("new.html", b"new"), entry("index.html", b"new")))

    with pytest.raises(FileError) as refused:
        extract.extract(tree, Extract("a.zip", "public", False))
    after_refusal = sorted(os.listdir(home / "public"))
    extract.extract(tree, Extract("a.zip", "public", True))

    assert refused.value.code is Failed.EXISTS
    assert after_refusal == ["index.html", "kept.html"]
    assert (home / "public" / "index.html").read_text() == "new"
    assert sorted(os.listdir(home / "public")) == ["index.html", "kept.html", "new.html"]


CUT_BEHIND_ITS_FIRST_FILE = {
    "tar": tar(entry("index.html", b"new"), entry("b", os.urandom(50_000)))[:-20_000],
    "tar.gz": tar(entry("index.html", b"new"), entry("b", os.urandom(50_000)), mode="w:gz")[:-20_000],
    "tar.xz": tar(entry("index.html", b"new"), entry("b", os.urandom(50_000)), mode="w:xz")[:-20_000],
    "zip": zipped(entry("index.html", b"new"), entry("b", os.urandom(50_000)))[:-20_000],
}


@pytest.mark.parametrize(
    "archive",
    [*HOSTILE.values(), *BROKEN.values(), *CUT_BEHIND_ITS_FIRST_FILE.values()],
    ids=[*HOSTILE, *BROKEN, *(f"{name}, cut behind its first file" for name in CUT_BEHIND_ITS_FIRST_FILE)],
)
def test_what_is_to_be_replaced_by_a_wrong_archive_stays(tree: Tree, home: Path, archive: bytes) -> None:
    (home / "public").mkdir()
    for name in ("index.html", "a", "file", "way"):
        (home / "public" / name).write_text("old")
    (home / "wrong").write_bytes(archive)

    with pytest.raises(FileError):
        extract.extract(tree, Extract("wrong", "public", True))

    assert {path.name: path.read_text() for path in (home / "public").iterdir()} == dict.fromkeys(
        ("index.html", "a", "file", "way"), "old"
    )
    assert os.listdir(home / ".svc-tmp") == []


def test_an_archive_that_has_no_room_replaces_nothing(tree: Tree, home: Path) -> None:
    (home / "public").mkdir()
    (home / "public" / "index.html").write_text("old")
    (home / "a.zip").write_bytes(zipped(entry("index.html", b"new"), entry("large", os.urandom(50_000))))

    with pytest.raises(FileError):
        extract.extract(tree, Extract("a.zip", "public", True, most=20_000))

    assert [path.name for path in (home / "public").iterdir()] == ["index.html"]
    assert (home / "public" / "index.html").read_text() == "old"


def test_unpacking_does_not_go_through_a_link_that_lies_in_the_way(tree: Tree, home: Path) -> None:
    (home / "public").mkdir()
    (home / "public" / "uploads").symlink_to("../../outside")
    (home / "a.zip").write_bytes(zipped(entry("uploads/evil.php")))

    with pytest.raises(FileError):
        extract.extract(tree, Extract("a.zip", "public", True))

    assert os.listdir(home.parent / "outside") == []
    assert (home / "public" / "uploads").is_symlink()


@pytest.mark.parametrize("format_", ["zip", "tar.gz"])
def test_what_is_packed_comes_out_as_it_was(tree: Tree, home: Path, format_: str) -> None:
    site = home / "site"
    (site / "empty").mkdir(parents=True)
    (site / "big").write_bytes(os.urandom(700_000))
    (site / "run").write_text("#!")
    (site / "run").chmod(0o755)
    (site / "link").symlink_to("run")

    compress.compress(tree, Compress(["site"], "packed", format_))
    extract.extract(tree, Extract("packed", "again", False))

    again = home / "again" / "site"
    assert sorted(os.listdir(again)) == ["big", "empty", "link", "run"]
    assert (again / "big").read_bytes() == (site / "big").read_bytes()
    assert (again / "run").stat().st_mode & 0o777 == 0o755
    assert os.readlink(again / "link") == "run"


def test_packing_takes_a_link_and_not_what_it_leads_to(tree: Tree, home: Path) -> None:
    (home.parent / "outside" / "secret").write_text("of another site")
    (home / "site").mkdir()
    (home / "site" / "way").symlink_to("../../outside/secret")

    compress.compress(tree, Compress(["site"], "packed.tar.gz", "tar.gz"))

    with tarfile.open(home / "packed.tar.gz") as archive:
        assert archive.getmember("site/way").issym()
        assert "of another site" not in (home / "packed.tar.gz").read_bytes().decode("latin-1")
