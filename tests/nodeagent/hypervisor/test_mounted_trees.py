"""A mounted target that others write to as well: nothing there stops an agent, and nothing outside of it is touched."""

from __future__ import annotations

import ast
import hashlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import structlog.testing
import trio
import trio.testing

import svc_nodeagent.hypervisor.backups
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import mounted_tree, running
from svc_nodeagent.hypervisor.backups.mounted import MountedTarget
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.hypervisor.backups.verification import SHARES
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.protocol import FailureCode

SHARE = 3
NAME = "00000003" + 56 * "a"
"""Of the share that is looked at."""
Plant = Callable[[Path, Path], None]


def _socket(place: Path, outside: Path) -> None:
    folder = os.open(place.parent, os.O_PATH)  # A path of a socket has 108 bytes.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{folder}/s")
    os.close(folder)
    (place.parent / "s").rename(place)


def _link_to_a_pipe(place: Path, outside: Path) -> None:
    os.mkfifo(outside / "pipe")
    place.symlink_to(outside / "pipe")


def _sparse(place: Path, outside: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1024**4)


ENTRIES: dict[str, Plant] = {
    "pipe": lambda place, outside: os.mkfifo(place),
    "socket": _socket,
    "device": lambda place, outside: os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
    "folder": lambda place, outside: place.mkdir(),
    "link to a file": lambda place, outside: place.symlink_to(outside / "keep"),
    "link to a folder": lambda place, outside: place.symlink_to(outside),
    "link to /dev/zero": lambda place, outside: place.symlink_to("/dev/zero"),
    "link to a pipe": _link_to_a_pipe,
    "link to nothing": lambda place, outside: place.symlink_to(outside / "nothing"),
    "sparse file": _sparse,
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the node that no step at a target may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "important-tmp-1").write_text("important")
    (folder / "keep").write_text("keep")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> MountedTarget:
    """With a repository that has one whole file of data."""
    place = MountedTarget(tmp_path / "machines", uuid4())
    for folder in (*mounted_tree._FRAME, "data/00"):
        (place.path / folder).mkdir(parents=True)
    (place.path / "config").write_text("config")
    (place.path / "data/00" / hashlib.sha256(b"whole").hexdigest()).write_bytes(b"whole")
    return place


def _content(folder: Path) -> set[str]:
    return {f"{path.name}: {path.read_text()}" for path in folder.iterdir() if path.is_file()}


async def _checked(target: MountedTarget) -> list[str]:
    with trio.fail_after(20):
        return [each.file for each in await target.set_aside_damaged(share=0, shares=1)]


@pytest.mark.parametrize("locked", [True, False])
def test_the_look_before_each_step_goes_over_no_data(
    target: MountedTarget, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """A look says nothing until its end, and a large store has hundreds of thousands of files."""
    listed, listdir = list[str](), os.listdir

    def noted(folder: int) -> list[str]:
        listed.append(Path(os.readlink(f"/proc/self/fd/{folder}")).name)
        return listdir(folder)

    def look() -> dict[str, bool]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "listdir", noted)
            return mounted_tree._look(machines, str(target.vm_id))

    if locked:
        (target.path / "locks" / NAME).write_text("lock")
    machines = os.open(target.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert look() == {"there": True, "locked": locked}
    finally:
        os.close(machines)
    assert listed == ["locks"]


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("within", ["data/00", "data", "index", "locks"])
async def test_what_is_no_file_of_data_is_set_aside_and_never_opened(
    target: MountedTarget, outside: Path, kind: str, within: str
) -> None:
    before = _content(outside)
    ENTRIES[kind](target.path / within / NAME, outside)

    damaged = await _checked(target)
    await target.remove_unfinished()
    # A file of any size is nothing to read where names are no digests, and a folder of `data` is one of data
    expected = within == "data/00" or (kind != "sparse file" and (kind, within) != ("folder", "data"))
    assert damaged == ([f"{within}/{NAME}"] if expected else [])
    assert os.path.lexists(target.path / "damaged" / NAME) is expected
    assert _content(outside) == before
    assert await _checked(target) == []
    assert len(list((target.path / "data/00").iterdir())) == 1


@pytest.mark.parametrize("name", ["z" * 64, "٣" * 64, "\x1b]0;title\x07" + "a" * 54])
async def test_a_name_that_is_no_digest_is_damaged_and_shown_without_controls(target: MountedTarget, name: str) -> None:
    (target.path / "data/00" / name).write_text("content")
    [shown] = await _checked(target)
    assert shown.isascii()
    assert shown.isprintable()
    assert (target.path / "damaged" / name).exists()


@pytest.mark.parametrize("name", ["", "data", "damaged", "locks", "keys", "index", "snapshots", "config"])
async def test_a_link_in_place_of_a_store_or_its_folders_refuses_the_backup(
    target: MountedTarget, outside: Path, name: str
) -> None:
    place, before = target.path / name, _content(outside)
    if os.path.lexists(place):
        place.rename(outside.parent / "real")
    place.symlink_to(outside)

    store = store_at(target.folder, target.vm_id, "key", None)
    with trio.fail_after(20), pytest.raises(HostError, match="damaged or was changed") as refused:
        await store.prepare()
    assert refused.value.hint is not None
    assert "was not changed" in refused.value.message
    assert _content(outside) == before


@pytest.mark.parametrize("where", ["link", "data/link", "data", ""])
async def test_no_link_leads_the_removal_of_unfinished_files_elsewhere(
    target: MountedTarget, outside: Path, where: str
) -> None:
    place, before = target.path / where, _content(outside)
    if os.path.lexists(place):
        place.rename(outside.parent / "real")
    place.symlink_to(outside)
    with trio.fail_after(20):
        if where in ("data", ""):
            with pytest.raises(HostError, match="is no folder"):
                await target.remove_unfinished()
        else:
            await target.remove_unfinished()
    assert _content(outside) == before


async def test_unfinished_files_go_and_with_them_a_link_of_such_a_name(target: MountedTarget, outside: Path) -> None:
    unfinished = target.path / "data/00" / f"{NAME}-tmp-1"
    unfinished.write_bytes(b"unfinished")
    link = target.path / "index" / f"{NAME}-tmp-2"
    link.symlink_to(outside / "important-tmp-1")
    before = _content(outside)
    await target.remove_unfinished()
    assert not os.path.lexists(unfinished)
    assert not os.path.lexists(link)
    assert _content(outside) == before


async def test_a_store_is_removed_however_deep_others_have_made_it(target: MountedTarget, outside: Path) -> None:
    folder = os.open(target.path, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=folder)
        os.symlink(outside, "link", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    before = _content(outside)
    try:
        await target.remove()
        left = os.path.lexists(target.path)
    finally:
        # Such a tree would end each later run, where pytest removes its folders.
        await trio.run_process(["rm", "-rf", str(target.path)])
    assert not left
    assert _content(outside) == before


async def test_a_store_that_became_a_link_is_removed_as_the_link(target: MountedTarget, outside: Path) -> None:
    target.path.rename(outside.parent / "real")
    target.path.symlink_to(outside)
    before = _content(outside)
    await target.remove()
    assert not os.path.lexists(target.path)
    assert _content(outside) == before


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_file_that_is_exchanged_once_it_was_listed_is_noticed(
    target: MountedTarget, outside: Path, kind: str
) -> None:
    """In this process, where the exchange falls between the two."""
    place = target.path / "data/00" / NAME
    place.write_bytes(b"changed")
    repository = os.open(target.path, os.O_RDONLY)
    seen = []
    for entry in mounted_tree.walk(repository):
        if entry.name == NAME:
            place.unlink()
            ENTRIES[kind](place, outside)
            fault = mounted_tree._fault(entry, SHARE, SHARES)
            assert fault is not None
            seen.append(fault)
    os.close(repository)
    assert len(seen) == 1


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target whose server says nothing: whatever is done there waits for ever."""
    helper = tmp_path / "silent.py"
    helper.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    monkeypatch.setattr(mounted_tree, "__file__", str(helper))


@pytest.mark.parametrize("count", [4, 16])
@pytest.mark.usefixtures("silent")
async def test_other_file_steps_are_served_while_targets_are_silent(tmp_path: Path, count: int) -> None:
    stores = [store_at(tmp_path, uuid4(), "key", None) for _ in range(count)]
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for store in stores:
                for step in (store.prepare, store.remove, store.listing):
                    nursery.start_soon(step)
                nursery.start_soon(store.verify, SHARE)
            await trio.testing.wait_all_tasks_blocked()
            assert await in_thread(os.getpid) == os.getpid()
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("silent")
async def test_a_silent_target_is_given_up_in_words(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="made no progress") as given_up:
        await MountedTarget(tmp_path, uuid4()).look(patience=0.2)
    assert given_up.value.code is FailureCode.TIMED_OUT


@pytest.mark.usefixtures("silent")
async def test_a_step_that_no_signal_ends_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits in the kernel for a file server."""
    processes: list[trio.Process] = []
    monkeypatch.setattr(trio.Process, "kill", lambda process: processes.append(process))
    monkeypatch.setattr(running, "_LEAVE_SECONDS", 0.2)
    with structlog.testing.capture_logs() as logged, trio.fail_after(20):
        with pytest.raises(HostError, match="made no progress"):
            await MountedTarget(tmp_path, uuid4()).look(patience=0.2)
    monkeypatch.undo()
    [process] = processes
    assert [(each["event"], each["pid"]) for each in logged] == [("program.left_behind", process.pid)]
    process.kill()
    await process.wait()


FORBIDDEN = {
    *("open", "glob", "rglob", "iterdir", "walk", "scandir", "listdir", "rename", "replace", "unlink", "remove"),
    *("rmdir", "rmtree", "mkdir", "makedirs", "touch", "chmod", "exists", "is_dir", "is_file", "stat", "lstat"),
    *("read_bytes", "read_text", "write_bytes", "write_text", "symlink_to", "samefile", "resolve", "statvfs"),
}
OF_THE_NODE = {
    "bases.py": {"open", "unlink", "replace", "read_bytes"},  # machines/<vm_id>, beside the record
    "copies.py": {"exists", "remove", "unlink"},  # machines/<vm_id>; `remove` of a store
    "first_store.py": {"iterdir", "read_bytes"},  # a temporary folder of the node's
    "live_reading.py": {"touch", "unlink"},  # machines/<vm_id>
    "mounted_tree.py": FORBIDDEN,  # this is the one that walks
    "orphans.py": {"glob", "read_bytes"},  # /proc
    "places.py": {"replace"},  # of a dataclass
    "reading.py": {"glob", "unlink", "rmtree", "exists", "touch", "mkdir"},  # machines/<vm_id>; sockets below /run
    "store.py": {"remove"},  # `MountedTarget.remove`
}
"""Calls by these names that touch no target: each was read when it was added."""


def test_nothing_but_one_module_touches_a_mounted_target_by_path() -> None:
    [folder] = svc_nodeagent.hypervisor.backups.__path__
    found = {}
    for module in Path(folder).glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
        references = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
        # `in_thread(path.unlink)` calls nothing by its name
        references |= {
            node.attr
            for call in ast.walk(ast.parse(module.read_text()))
            if isinstance(call, ast.Call)
            for node in call.args
            if isinstance(node, ast.Attribute)
        }
        if touching := (references & FORBIDDEN) - OF_THE_NODE.get(module.name, set()):
            found[module.name] = touching
    assert found == {}
