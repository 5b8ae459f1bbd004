"""Archives as people bring them, packed by other programs and on other systems."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_webhost.confined import extract
from svc_webhost.confined.protocol import Extract, Failed, FileError
from svc_webhost.confined.tree import Tree
from svc_webhost.confined.zip_names import ENCODINGS
from tests.webhost.confined.test_archives import entry, foreign_zip, link, tar

DOS, UNIX = 0, 3
_STREAMED = """
import sys, zipfile
with zipfile.ZipFile(sys.stdout.buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    with archive.open("a.txt", "w", force_zip64=True) as file:
        file.write(open("a.txt", "rb").read())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def tree(home: Path) -> Iterator[Tree]:
    root = os.open(home, os.O_PATH | os.O_DIRECTORY)
    yield Tree(root)
    os.close(root)


def unpacked(home: Path, tree: Tree, archive: bytes, encoding: str | None = None) -> dict[str, bytes]:
    """Files by their names."""
    (home / "a.archive").write_bytes(archive)
    extract.extract(tree, Extract("a.archive", "unpacked", False, encoding=encoding))
    found = home / "unpacked"
    return {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()}


def packed(folder: Path, *command: str) -> bytes:
    """What a program writes to its standard output."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout


# Names of web sites as Windows writes them in the code page of its language.
@pytest.mark.parametrize(
    ("encoding", "codec", "names"),
    [
        ("gb18030", "gbk", ["图片/产品.jpg", "关于我们.html"]),
        ("gb18030", "gbk", ["新闻.html"]),
        ("shift_jis", "cp932", ["画像.png", "会社概要.html"]),
        ("shift_jis", "cp932", ["データ.txt"]),
        ("big5", "cp950", ["關於我們.html"]),
        ("euc_kr", "cp949", ["회사소개.html"]),
        ("cp866", "cp866", ["О компании.html", "ПРАЙС.TXT"]),
        ("cp1252", "cp1252", ["café.txt"]),
        ("cp850", "cp850", ["São Paulo.txt"]),
    ],
)
def test_names_in_an_encoding_that_the_archive_does_not_say_are_asked_for(
    tree: Tree, home: Path, encoding: str, codec: str, names: list[str]
) -> None:
    archive = foreign_zip(DOS, *(name.encode(codec) for name in names))

    with pytest.raises(FileError) as asked:
        unpacked(home, tree, archive)
    left = sorted(os.listdir(home))
    found = unpacked(home, tree, archive, encoding)

    assert asked.value.code is Failed.INVALID
    assert "nothing was unpacked" in asked.value.message
    shown = max(names, key=lambda name: sum(byte > 0x7F for byte in name.encode(codec)))
    assert f"{encoding} ({shown!r})" in asked.value.message
    assert left == [".svc-tmp", "a.archive"]
    assert sorted(found) == sorted(names)


@pytest.mark.parametrize(
    "names",
    [
        ["Größe.txt", "Übersicht/Äpfel.jpg", "Maß.html"],
        ["château.jpg", "âge.txt", "créée.html", "forêt/être.css"],
        ["pääsivu.html", "häät.jpg", "año.txt", "piñata.png", "ångström"],
        ["plain.txt", "with space (1).jpg"],
    ],
    ids=["German", "French", "Finnish, Spanish, Swedish", "ASCII"],
)
def test_names_of_dos_with_accents_are_read_without_a_question(tree: Tree, home: Path, names: list[str]) -> None:
    found = unpacked(home, tree, foreign_zip(DOS, *(name.encode("cp437") for name in names)))

    assert sorted(found) == sorted(names)


def test_a_name_with_the_flag_is_utf_8_whatever_the_others_are_said_to_be(tree: Tree, home: Path) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("日本.txt", b"flagged")
        info = zipfile.ZipInfo("0000")
        info.create_system = DOS
        archive.writestr(info, b"x")

    found = unpacked(home, tree, into.getvalue().replace(b"0000", "中文".encode("gbk")), "gb18030")

    assert sorted(found) == ["中文", "日本.txt"]


@pytest.mark.parametrize("encoding", [each for each in ENCODINGS if not each.startswith("cp")])
def test_names_that_are_wrong_in_the_encoding_refuse_the_archive(tree: Tree, home: Path, encoding: str) -> None:
    archive = foreign_zip(DOS, b"\x81\x20\xff\xff.txt")

    with pytest.raises(FileError) as refused:
        unpacked(home, tree, archive, encoding)

    assert refused.value.code is Failed.INVALID
    assert encoding in refused.value.message


# `tar --sparse` by GNU tar 1.34: its old type of header, and three forms of pax records.
@pytest.mark.parametrize(
    "form", [("gnu",), ("posix", "0.0"), ("posix", "0.1"), ("posix", "1.0")], ids=lambda form: " ".join(form)
)
@pytest.mark.parametrize("holes", [1, 3, 60])
def test_files_with_holes_come_out_whole(
    tree: Tree, home: Path, tmp_path: Path, form: tuple[str, ...], holes: int
) -> None:
    with (tmp_path / "data.db").open("wb") as file:
        for number in range(holes):
            file.seek(number * 100_000 + 50_000)
            file.write(b"row %d" % number)
        file.truncate(holes * 100_000)
    (tmp_path / "next.txt").write_text("next")
    version = [f"--sparse-version={form[1]}"] if len(form) > 1 else []
    archive = packed(tmp_path, "tar", "-cS", f"--format={form[0]}", *version, "data.db", "next.txt")

    found = unpacked(home, tree, archive)

    assert found == {"data.db": (tmp_path / "data.db").read_bytes(), "next.txt": b"next"}
    assert len(archive) < 100_000 * holes or holes == 1


def test_a_bomb_of_holes_is_counted_before_it_is_written(tree: Tree, home: Path, tmp_path: Path) -> None:
    with (tmp_path / "bomb").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(FileError) as refused:
        unpacked(home, tree, packed(tmp_path, "tar", "-cS", "bomb"))

    assert "200 times its size" in refused.value.message


@pytest.mark.parametrize(
    "records",
    [
        {"GNU.sparse.size": "10", "GNU.sparse.map": "5,2,3,2"},
        {"GNU.sparse.size": "4", "GNU.sparse.map": "0,8"},
        {"GNU.sparse.size": "10", "GNU.sparse.map": "0,8,9"},
        {"GNU.sparse.size": "10", "GNU.sparse.map": "0,9"},
        {"GNU.sparse.size": "-1", "GNU.sparse.map": "0,8"},
        {"GNU.sparse.size": "10", "GNU.sparse.map": "-8,8"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10"},
    ],
    ids=["overlap", "beyond the end", "half a pair", "too little", "a negative size", "a negative place", "no table"],
)
def test_holes_that_are_out_of_order_are_damage(tree: Tree, home: Path, records: dict[str, str]) -> None:
    archive = tar(entry("file", b"12345678", pax_headers=records))

    with pytest.raises(FileError) as refused:
        unpacked(home, tree, archive)

    assert refused.value.code is Failed.INVALID


def test_of_files_and_links_with_one_name_the_last_one_counts(tree: Tree, home: Path) -> None:
    found = unpacked(
        home,
        tree,
        tar(
            entry("a", b"old"),
            entry("a", b"new"),
            entry("b", b"file"),
            link("b", "a"),
            link("c", "a"),
            entry("c", b"file"),
            link("d", "a"),
            link("d", "c"),
        ),
    )

    assert found == {"a": b"new", "b": b"new", "c": b"file", "d": b"file"}
    assert (home / "unpacked/b").is_symlink()
    assert not (home / "unpacked/c").is_symlink()


def test_what_tar_appended_replaces_what_it_had(tree: Tree, home: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    packed(tmp_path, "tar", "-cf", "site.tar", "page.html")
    (tmp_path / "page.html").write_text("newer")
    packed(tmp_path, "tar", "-rf", "site.tar", "page.html")

    assert unpacked(home, tree, (tmp_path / "site.tar").read_bytes()) == {"page.html": b"newer"}


@pytest.mark.parametrize("format_", ["gnu", "pax", "ustar", "v7", "oldgnu"])
def test_every_format_of_tar_is_read(tree: Tree, home: Path, tmp_path: Path, format_: str) -> None:
    name = "n" * 60 if format_ in ("ustar", "v7") else "folder/" * 12 + "n" * 200 + "é"
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    (tmp_path / "in" / name).write_text("long")

    found = unpacked(home, tree, packed(tmp_path / "in", "tar", "-c", f"--format={format_}", "."))

    assert found == {name: b"long"}


def test_a_label_and_lists_of_an_incremental_archive_are_left_out(tree: Tree, home: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")

    found = unpacked(home, tree, packed(tmp_path, "tar", "-c", "-V", "weekly", "-g", "snapshot", "in"))

    assert found == {"in/a": b"x"}


def test_one_part_of_several_is_refused_in_words(tree: Tree, home: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(150_000))
    packed(tmp_path, "zip", "-0", "-s", "64k", "split.zip", "large")
    subprocess.run(
        ["tar", "-c", "-M", "-L", "100", "-f", "one.tar", "-f", "two.tar", "large"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    for name in ("split.zip", "split.z01", "two.tar"):
        with pytest.raises(FileError) as refused:
            unpacked(home, tree, (tmp_path / name).read_bytes())
        assert "one part of several" in refused.value.message
        assert os.listdir(home / ".svc-tmp") == []
    with pytest.raises(FileError) as refused:
        unpacked(home, tree, (tmp_path / "one.tar").read_bytes())
    assert "ends early" in refused.value.message


def test_zip_archives_that_were_streamed_are_read(tree: Tree, home: Path, tmp_path: Path) -> None:
    """With sizes behind the data (a data descriptor), and the fields of zip64."""
    (tmp_path / "a.txt").write_text("text" * 1000)

    plain = unpacked(home, tree, packed(tmp_path, "zip", "-fd", "-q", "-", "a.txt"))
    shutil.rmtree(home / "unpacked")
    packed(tmp_path, "zip", "-fz", "-q", "large.zip", "a.txt")
    large = unpacked(home, tree, (tmp_path / "large.zip").read_bytes())
    shutil.rmtree(home / "unpacked")
    streamed = unpacked(home, tree, packed(tmp_path, sys.executable, "-c", _STREAMED))

    assert plain == large == streamed == {"a.txt": b"text" * 1000}


def test_a_zip_archive_that_could_have_been_split_is_read(tree: Tree, home: Path) -> None:
    archive = foreign_zip(UNIX, b"a.txt")

    assert unpacked(home, tree, b"PK00" + archive) == {"a.txt": b"x"}


def test_a_tar_of_python_and_one_of_solaris_are_read(tree: Tree, home: Path) -> None:
    archive = tar(entry("é" * 100, b"x", pax_headers={"comment": "x"}))
    solaris = bytearray(archive)
    assert solaris[156:157] == tarfile.XHDTYPE
    solaris[156:157] = tarfile.SOLARIS_XHDTYPE
    solaris[148:156] = b" " * 8
    solaris[148:156] = b"%06o\0 " % sum(solaris[:512])

    assert unpacked(home, tree, bytes(solaris)) == {"é" * 100: b"x"}
