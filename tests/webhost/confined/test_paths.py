"""Whatever a path says, and whatever lies on its way, nothing outside of the site's folder is read or changed."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc_webhost.confined import files
from svc_webhost.confined.protocol import (
    ChangeMode,
    Copy,
    Delete,
    Failed,
    FileError,
    ListFolder,
    MakeFolder,
    Read,
    Rename,
    Stat,
    Write,
)
from svc_webhost.confined.tree import Tree

Request = Callable[[], object]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("of another site")
    return home


@pytest.fixture
def tree(home: Path) -> Iterator[Tree]:
    root = os.open(home, os.O_PATH | os.O_DIRECTORY)
    yield Tree(root)
    os.close(root)


BAD_PATHS = [
    "..", "../outside/secret", "a/../../outside/secret", "/etc/passwd", "//etc/passwd", "a//b", "./a", "a/.", "a/",
    "a\0b", "x" * 256, "d/" * 2100 + "f", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_is_none_is_refused_by_every_request(tree: Tree, path: str) -> None:
    requests: list[Request] = [
        lambda: files.read(tree, Read(path, 0, 10)),
        lambda: files.show(tree, Stat(path)),
        lambda: files.list_folder(tree, ListFolder(path, 0, 10)),
        lambda: files.write(tree, Write(path, True), b"x"),
        lambda: files.make_folder(tree, MakeFolder(path, True)),
        lambda: files.rename(tree, Rename(path, "b", True)),
        lambda: files.rename(tree, Rename("b", path, True)),
        lambda: files.copy(tree, Copy(path, "b")),
        lambda: files.copy(tree, Copy("b", path)),
        lambda: files.delete(tree, Delete([path])),
        lambda: files.change_mode(tree, ChangeMode(path, 0o777)),
    ]

    codes = set()
    for request in requests:
        with pytest.raises(FileError) as refused:
            request()
        codes.add(refused.value.code)

    assert codes <= {Failed.INVALID, Failed.NOT_FOUND}
    assert Failed.INVALID in codes


@pytest.mark.parametrize("target", ["../outside", "/etc", "../../../../../../../../etc", "../home/../outside"])
def test_a_link_out_of_the_folder_leads_nowhere(tree: Tree, home: Path, target: str) -> None:
    (home / "way").symlink_to(target)
    secret = home.parent / "outside" / "secret"

    requests: list[Request] = [
        lambda: files.read(tree, Read("way/secret", 0, 100)),
        lambda: files.read(tree, Read("way/passwd", 0, 100)),
        lambda: files.list_folder(tree, ListFolder("way", 0, 10)),
        lambda: files.write(tree, Write("way/secret", True), b"mine"),
        lambda: files.delete(tree, Delete(["way/secret"])),
        lambda: files.rename(tree, Rename("way/secret", "mine", True)),
        lambda: files.copy(tree, Copy("way/secret", "mine")),
        lambda: files.change_mode(tree, ChangeMode("way/secret", 0o777)),
    ]
    for request in requests:
        with pytest.raises(FileError) as refused:
            request()
        assert refused.value.code is Failed.REFUSED

    assert secret.read_text() == "of another site"
    assert sorted(os.listdir(home)) in (["way"], [".svc-tmp", "way"])


def test_a_link_within_the_folder_is_followed(tree: Tree, home: Path) -> None:
    (home / "shared").mkdir()
    (home / "shared" / "page").write_text("hello")
    (home / "current").symlink_to("shared")

    _, data = files.read(tree, Read("current/page", 0, 100))

    assert data == b"hello"


def test_a_folder_that_is_swapped_for_a_link_again_and_again_leads_nowhere(tree: Tree, home: Path) -> None:
    (home / "a").mkdir()
    (home / "a" / "secret").write_text("own")
    (home / "b").symlink_to("../outside")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(home / "a", home / "c")
            os.rename(home / "b", home / "a")
            os.rename(home / "a", home / "b")
            os.rename(home / "c", home / "a")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    deadline = time.monotonic() + 60
    try:
        # And on until the folder itself was met once: a thread may have the processor for long.
        for attempt in itertools.count():
            if (attempt >= 3000 and b"own" in seen) or time.monotonic() > deadline:
                break
            try:
                seen.add(files.read(tree, Read("a/secret", 0, 100))[1])
                files.write(tree, Write("a/mine", True), b"x")
                files.change_mode(tree, ChangeMode("a/secret", 0o640))
            except FileError as error:
                seen.add(error.code.value.encode())
    finally:
        done.set()
        swapping.join()

    assert b"own" in seen
    assert b"of another site" not in seen
    assert os.listdir(home.parent / "outside") == ["secret"]
    assert (home.parent / "outside" / "secret").stat().st_mode & 0o777 != 0o640


@pytest.mark.system
@pytest.mark.isolated
def test_another_name_of_somebody_elses_file_is_neither_read_nor_changed_nor_copied(tree: Tree, home: Path) -> None:
    secret = home.parent / "outside" / "secret"
    os.chown(secret, 203_000, 203_000)
    os.link(secret, home / "mine")

    requests: list[Request] = [
        lambda: files.read(tree, Read("mine", 0, 100)),
        lambda: files.copy(tree, Copy("mine", "copied")),
        lambda: files.change_mode(tree, ChangeMode("mine", 0o666)),
        lambda: files.write(tree, Write("mine", True), b"changed"),
    ]
    for request in requests:
        with pytest.raises(FileError) as refused:
            request()
        assert refused.value.code is Failed.REFUSED
    files.delete(tree, Delete(["mine"]))

    assert secret.read_text() == "of another site"
    assert not (home / "mine").exists()


def test_pipes_sockets_and_folders_are_no_files_and_nobody_waits_for_them(tree: Tree, home: Path) -> None:
    os.mkfifo(home / "pipe")
    (home / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "socket"))

    codes = {}
    for name in ("pipe", "folder", "socket"):
        with pytest.raises(FileError) as refused:
            files.read(tree, Read(name, 0, 100))
        codes[name] = refused.value.code

    assert set(codes.values()) == {Failed.CONFLICT}


def test_links_of_proc_are_not_followed(tree: Tree, home: Path) -> None:
    for target in ("/proc/self/root/etc/passwd", "/proc/self/fd/0", "/proc/1/root"):
        (home / "link").symlink_to(target)

        with pytest.raises(FileError) as refused:
            files.read(tree, Read("link", 0, 100))

        assert refused.value.code is Failed.REFUSED
        (home / "link").unlink()


def test_a_name_that_is_no_utf8_is_listed_and_can_be_removed(tree: Tree, home: Path) -> None:
    (home / os.fsdecode(b"caf\xe9.html")).write_text("x")

    _, listed = files.list_folder(tree, ListFolder("", 0, 10))
    files.delete(tree, Delete([os.fsdecode(b"caf\xe9.html")]))

    [entry] = json.loads(listed)
    assert (entry["name"], entry["name_exact"]) == ("caf\ufffd.html", False)
    assert os.listdir(home) == [".svc-tmp"]


@pytest.mark.parametrize("name", ['"', "\\", '","own":true,"x":"', "snow \u2603", "\U0001f408", "line\nbreak"])
def test_any_name_and_target_of_a_link_is_listed_as_it_is(tree: Tree, home: Path, name: str) -> None:
    (home / name).symlink_to(name)

    _, listed = files.list_folder(tree, ListFolder("", 0, 10))

    [entry] = json.loads(listed)
    assert (entry["name"], entry["target"], entry["kind"], entry["name_exact"]) == (name, name, "link", True)


def test_deleting_removes_links_and_not_what_they_lead_to(tree: Tree, home: Path) -> None:
    (home / "site").mkdir()
    (home / "site" / "out").symlink_to("../../outside")
    (home / "site" / "locked").mkdir(mode=0o000)

    files.delete(tree, Delete(["site"]))

    assert not (home / "site").exists()
    assert (home.parent / "outside" / "secret").exists()
    assert os.listdir(home / ".svc-tmp") == []


def test_nothing_is_deleted_when_one_of_the_paths_leads_to_nothing(tree: Tree, home: Path) -> None:
    (home / "page").write_text("kept")

    with pytest.raises(FileError) as refused:
        files.delete(tree, Delete(["page", "missing"]))

    assert refused.value.code is Failed.NOT_FOUND
    assert (home / "page").read_text() == "kept"


def test_folders_are_removed_however_deep_they_lie_in_each_other(tree: Tree, home: Path) -> None:
    (home / "deep").mkdir()
    folder = os.open(home / "deep", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)

    files.delete(tree, Delete(["deep"]))

    assert os.listdir(home) == [".svc-tmp"]
    assert os.listdir(home / ".svc-tmp") == []


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6777])
def test_no_mode_makes_a_program_run_as_its_owner(tree: Tree, home: Path, mode: int) -> None:
    (home / "program").write_text("x")

    with pytest.raises(FileError):
        files.change_mode(tree, ChangeMode("program", mode))

    assert (home / "program").stat().st_mode & 0o6000 == 0


def test_the_mode_of_what_a_link_leads_to_is_not_changed(tree: Tree, home: Path) -> None:
    secret = home.parent / "outside" / "secret"
    secret.chmod(0o600)
    (home / "link").symlink_to("../outside/secret")

    with pytest.raises(FileError) as refused:
        files.change_mode(tree, ChangeMode("link", 0o644))

    assert refused.value.code is Failed.REFUSED
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_copied_into_itself_once(tree: Tree, home: Path) -> None:
    (home / "a").mkdir()
    (home / "a" / "file").write_text("x")

    files.copy(tree, Copy("a", "a/again"))

    assert (home / "a" / "again" / "file").read_text() == "x"
    assert not (home / "a" / "again" / "again").exists()


def test_nothing_is_replaced_that_was_not_said(tree: Tree, home: Path) -> None:
    (home / "old").write_text("old")
    (home / "new").write_text("new")

    requests: list[Request] = [
        lambda: files.rename(tree, Rename("new", "old", False)),
        lambda: files.copy(tree, Copy("new", "old")),
        lambda: files.write(tree, Write("old", False), b"new"),
    ]
    for request in requests:
        with pytest.raises(FileError) as refused:
            request()
        assert refused.value.code is Failed.EXISTS

    assert (home / "old").read_text() == "old"


def test_a_file_that_was_changed_since_it_was_read_is_not_overwritten(tree: Tree, home: Path) -> None:
    (home / "page").write_text("changed by another")

    with pytest.raises(FileError) as refused:
        files.write(tree, Write("page", True, "0" * 64), b"mine")

    assert refused.value.code is Failed.CONFLICT
    assert (home / "page").read_text() == "changed by another"


def test_a_file_keeps_its_mode_when_it_is_written(tree: Tree, home: Path) -> None:
    (home / "wp-config.php").write_text("old")
    (home / "wp-config.php").chmod(0o600)

    files.write(tree, Write("wp-config.php", True), b"new")

    assert (home / "wp-config.php").stat().st_mode & 0o777 == 0o600
    assert (home / "wp-config.php").read_text() == "new"
