"""Trees that a tenant has made as deep as the file system lets her: removed by root, or refused in words."""

from __future__ import annotations

import ast
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_webhost import accounts, tree_removal
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined import tree
from svc_webhost.confined.find import find
from svc_webhost.confined.tree import Tree
from svc_webhost.folders import HostFolders
from svc_webhost.restic import manifest
from svc_webhost.staging import trees
from svc_webhost.tree_removal import remove_tree
from tests.support.panel_sources import panel_sources

DEEP, DEEPER = 3_000, 100_000
_OWN_TREES = {"svc_webhost/releases/layout.py", "svc_webhost/tree_removal.py"}
"""Releases of the panel, in a program that imports the standard library alone; and what names it to say why not."""
_CALLS_ITSELF = {"rmtree", "copytree", "rglob", "walk", "fwalk"}
_WALKS = {
    "svc_webhost/confined/find.py": "stops at a depth",
    "svc_actors/panel/backups/local_target.py": "restic's own folders, which lie three deep",
}


def nested(folder: Path, levels: int) -> None:
    """As the attack makes them: a path of this length could not be named."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here))
    os.close(here)


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: a disk takes a minute for so many folders. pytest's own removal would meet what this is about."""
    place = Path(tempfile.mkdtemp(prefix="svc-deep-", dir="/dev/shm"))
    yield place
    remove_tree(place)


@pytest.fixture
def home(place: Path) -> Path:
    home = place / "home"
    (home / "public").mkdir(parents=True)
    return home


@pytest.mark.parametrize("levels", [DEEP, DEEPER])
def test_a_tree_of_any_depth_is_removed_with_few_descriptors(home: Path, levels: int) -> None:
    nested(home / "public", levels)

    remove_tree(home)

    assert not home.exists()
    assert os.listdir(home.parent) == []


def test_what_lies_outside_stays(home: Path, place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "file").write_text("another's")
    (home / "link").symlink_to(outside)
    linked = place / "linked"
    linked.symlink_to(outside)

    remove_tree(linked)
    remove_tree(home)
    remove_tree(home)

    assert (outside / "file").read_text() == "another's"
    assert sorted(os.listdir(place)) == ["outside"]


@pytest.mark.parametrize("ignore_errors", [False, True])
def test_what_vanishes_while_it_is_removed_leaves_nothing_beside_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, ignore_errors: bool
) -> None:
    for folder in (home, home / "public"):
        for name in ("a", "b", "c"):
            (folder / name).mkdir()
    own_folder, vanished = tree._own_folder, set[int]()

    def vanish(folder: int, name: bytes) -> int:
        if name != b"public" and os.fstat(folder).st_ino not in vanished:
            vanished.add(os.fstat(folder).st_ino)
            os.rmdir(name, dir_fd=folder)
        return own_folder(folder, name)

    monkeypatch.setattr(tree, "_own_folder", vanish)

    remove_tree(home, ignore_errors=ignore_errors)

    assert len(vanished) == 2
    assert not home.exists()


def test_what_cannot_be_removed_is_an_error_or_stays_when_errors_are_ignored(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "busy").mkdir()

    def remove(parent: int, name: bytes) -> None:
        if name == b"busy":
            raise OSError(errno.EBUSY, "in use")
        tree.remove(parent, name)

    monkeypatch.setattr(tree_removal, "remove", remove)

    remove_tree(home, ignore_errors=True)
    assert [each.name for each in home.iterdir()] == ["busy"]
    with pytest.raises(OSError, match="in use"):
        remove_tree(home)


def test_the_files_of_an_account_are_removed_however_deep_they_lie(place: Path) -> None:
    folders, account = HostFolders(place), SiteAccount(9_461_001)
    for folder in (folders.sites / account.name, folders.site_logs / account.name):
        folder.mkdir(parents=True)
        nested(folder, DEEP)

    accounts._remove_files(account, folders)

    assert os.listdir(folders.sites) == os.listdir(folders.site_logs) == []


def test_staging_refuses_a_tree_that_is_too_deep_and_names_it(home: Path, place: Path) -> None:
    (home / "public" / "uploads").mkdir()
    nested(home / "public" / "uploads", DEEP)
    target = place / "target"
    target.mkdir()
    uid = os.getuid()

    for follow in (
        lambda: trees.digests(home, uid, ["uploads"]),
        lambda: trees.sizes(home, uid, ["uploads"]),
        lambda: trees.copy_entries(home, ["public"], uid, target, uid, ["uploads"], newest=False),
        lambda: trees.merge(home / "public", home, ["public"], uid, "uploads"),
        lambda: trees.merge(home / "public", home, [], uid, "uploads", since=0),
    ):
        with pytest.raises(trees.TooDeepError) as refused:
            follow()
        assert refused.value.filename == "uploads"
        assert "200 levels" in str(refused.value)


def test_a_backup_of_a_tree_that_is_too_deep_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested(home / "public", DEEP)
    order = ("scan", str(home), str(os.getuid()), "", str(home / "listed"), str(home / "excluded"))
    monkeypatch.setattr("sys.argv", ["manifest.py", *order])

    with pytest.raises(SystemExit) as refused:
        manifest.main()

    said = str(refused.value.code)
    assert said.startswith("Folders are nested too deeply")
    assert "4,096 bytes" in said
    assert len(said) < 500


def test_a_search_stops_at_a_depth_and_says_that_it_is_not_complete(home: Path) -> None:
    nested(home / "public", DEEP)
    root = os.open(home, os.O_PATH | os.O_DIRECTORY)

    found = find(Tree(root), "file", 100, [])

    os.close(root)
    assert found.complete is False


def test_nothing_that_calls_itself_for_each_level_is_used_on_trees_of_others() -> None:
    used = {
        name
        for name, path in panel_sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in _CALLS_ITSELF and ast.unparse(node.value) != "ast"
    }

    assert used == {*_WALKS, *_OWN_TREES} - {"svc_webhost/tree_removal.py"}
