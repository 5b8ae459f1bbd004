"""What is copied or unpacked takes what its source holds, and stops where the plan or the disk has no more room."""

from __future__ import annotations

import ast
import errno
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc_webhost.confined import files, room
from svc_webhost.confined.compress import compress
from svc_webhost.confined.extract import extract
from svc_webhost.confined.protocol import Compress, Copy, Extract, Failed, FileError
from svc_webhost.confined.room import DiskBudget, copy_content
from svc_webhost.confined.tree import Tree
from svc_webhost.staging import trees
from tests.support.panel_sources import panel_sources

MIB = 1 << 20
_COPIES = {"sendfile", "copy_file_range", "copyfileobj", "copyfile", "copytree", "copy2"}
_OF_THE_PANEL = {
    "svc_webhost/restic/driver.py": "a manifest",
    "svc_webhost/sftp/shell/services.py": "a program of ours",
    "svc_webhost/wordpress/sites.py": "a program of ours",
    "svc_webhost/wordpress/source.py": "an archive whose digest is known",
    "svc_actors/panel/releases/work.py": "a release whose digest is known",
}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    home = tmp_path / "home"
    home.mkdir()
    root = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    yield Tree(root)
    os.close(root)


@pytest.fixture
def home(tmp_path: Path, tree: Tree) -> Path:
    return tmp_path / "home"


def sparse(path: Path) -> None:
    """A GiB in size, of which two parts hold anything."""
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(512 * MIB)
        file.write(b"middle")
        file.truncate(1024 * MIB)


def holds(path: Path) -> int:
    return path.stat().st_blocks * 512


def left_in(home: Path) -> list[str]:
    return os.listdir(home / ".svc-tmp")


def test_the_copy_of_a_sparse_file_is_sparse(tree: Tree, home: Path) -> None:
    sparse(home / "big")

    files.copy(tree, Copy("big", "big2", most=MIB))

    assert (home / "big2").stat().st_size == 1024 * MIB
    assert holds(home / "big2") <= MIB
    with (home / "big2").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(512 * MIB)
        assert file.read(7) == b"middle\0"


def test_a_copy_stops_at_what_the_plan_leaves_and_nothing_of_it_stays(tree: Tree, home: Path) -> None:
    (home / "folder").mkdir()
    for name in ("a", "b", "c"):
        (home / "folder" / name).write_bytes(b"x" * MIB)

    with pytest.raises(FileError) as refused:
        files.copy(tree, Copy("folder", "folder2", most=2 * MIB))

    assert refused.value.code is Failed.NO_SPACE
    assert "plan" in refused.value.message
    assert left_in(home) == []
    files.copy(tree, Copy("folder", "folder2", most=3 * MIB))
    assert len(os.listdir(home / "folder2")) == 3


def test_a_file_that_grows_while_it_is_copied_stops_the_copy(tmp_path: Path) -> None:
    class Growing(DiskBudget):
        def take(self, size: int) -> None:
            with (tmp_path / "log").open("ab") as log:
                log.write(b"x" * 2 * MIB)
            super().take(size)

    (tmp_path / "log").write_bytes(b"x" * MIB)
    folder = os.open(tmp_path, os.O_RDONLY)
    with (tmp_path / "log").open("rb") as source, (tmp_path / "copy").open("wb") as target:
        with pytest.raises(OSError) as refused:
            copy_content(source.fileno(), target.fileno(), Growing(folder, 8 * MIB))

    os.close(folder)
    assert refused.value.errno == errno.EDQUOT
    assert (tmp_path / "copy").stat().st_size <= 10 * MIB


@pytest.mark.parametrize("whence", [os.SEEK_DATA, os.SEEK_HOLE])
def test_the_copy_of_a_file_that_is_cut_short_between_two_looks_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whence: int
) -> None:
    (tmp_path / "log").write_bytes(b"x" * MIB)
    seek = os.lseek

    def cut(file: int, at: int, what: int) -> int:
        if what == whence:
            os.truncate(tmp_path / "log", 0)
        return seek(file, at, what)

    monkeypatch.setattr(os, "lseek", cut)
    folder = os.open(tmp_path, os.O_RDONLY)
    with (tmp_path / "log").open("rb") as source, (tmp_path / "copy").open("wb") as target:
        written = copy_content(source.fileno(), target.fileno(), DiskBudget(folder))

    os.close(folder)
    assert written == 0


def test_a_copy_stops_before_the_disk_is_full(tree: Tree, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_bytes(b"x" * MIB)
    monkeypatch.setattr(room, "SPARE", 1 << 60)
    monkeypatch.setattr(room, "_SHARE", 1)

    with pytest.raises(FileError) as refused:
        files.copy(tree, Copy("file", "file2"))

    assert refused.value.code is Failed.NO_SPACE
    assert left_in(home) == []


def test_an_archive_is_made_and_unpacked_within_what_the_plan_leaves(tree: Tree, home: Path) -> None:
    (home / "file").write_bytes(os.urandom(3 * MIB))
    with tarfile.open(home / "packed.tar", "w") as archive:
        archive.add(home / "file", "file")

    works: list[Callable[[], object]] = [
        lambda: extract(tree, Extract("packed.tar", "unpacked", replace=False, most=2 * MIB)),
        lambda: compress(tree, Compress(["file"], "made.zip", "zip", most=2 * MIB)),
        lambda: compress(tree, Compress(["file"], "made.tar.gz", "tar.gz", most=2 * MIB)),
    ]
    for work in works:
        with pytest.raises(FileError) as refused:
            work()
        assert refused.value.code is Failed.NO_SPACE
        assert left_in(home) == []
    assert extract(tree, Extract("packed.tar", "unpacked", replace=False, most=4 * MIB)) == {"entries": 1}
    compress(tree, Compress(["file"], "made.zip", "zip", most=4 * MIB))


def test_a_staging_copy_keeps_holes_and_stops_at_what_the_plan_leaves(tmp_path: Path) -> None:
    source, target, uid = tmp_path / "site" / "public", tmp_path / "new", os.getuid()
    source.mkdir(parents=True)
    target.mkdir()
    sparse(source / "big")
    (source / "file").write_bytes(b"x" * 2 * MIB)

    counted = trees.copy_entries(source.parent, ["public"], uid, target, uid, ["big"], newest=False, most=MIB)
    with pytest.raises(OSError) as refused:
        trees.copy_entries(source.parent, ["public"], uid, target, uid, ["file"], newest=False, most=MIB)

    assert (target / "big").stat().st_size == 1024 * MIB
    assert max(counted.bytes, holds(target / "big")) <= MIB
    assert refused.value.errno == errno.EDQUOT


def test_nothing_else_copies_what_others_have_written() -> None:
    copying = {
        name
        for name, path in panel_sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in _COPIES
    }

    assert copying == {"svc_webhost/confined/room.py", *_OF_THE_PANEL}
