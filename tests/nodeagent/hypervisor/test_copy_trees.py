"""A path of a copy leads nowhere but into the guest's own tree, and what answers about it is believed nothing."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.copy_files import opened
from svc_nodeagent.hypervisor.copy_files.opened import CopyFiles
from svc_nodeagent.hypervisor.copy_files.sftp import Attributes, Sftp
from svc_nodeagent.hypervisor.copy_files.trees import find
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.protocol import (
    CopiedVolume,
    CopyVolumeState,
    EntryKind,
    FailureCode,
    VmFilesList,
    path_bytes,
    shown_name,
)
from tests.nodeagent.hypervisor.builders import silent

ROOT = b"/run/volumes/1"


class Tree:
    """A server that follows no link, and fails the test where it is asked for what is outside the tree."""

    def __init__(self, *files: bytes, **links: bytes) -> None:
        self._files = {ROOT + b"/" + name for name in files}
        self._links = {ROOT + b"/" + name.replace("__", "/").encode(): target for name, target in links.items()}
        paths = [*self._files, *self._links]
        self._folders = {ROOT} | {
            path.rsplit(b"/", depth)[0] for path in paths for depth in range(1, path.count(b"/") - 2)
        }

    async def attributes(self, path: bytes) -> Attributes:
        assert path == ROOT or path.startswith(ROOT + b"/")
        assert not {b"", b".", b".."} & set(path.removeprefix(ROOT).split(b"/")[1:])
        for kind, names in ((EntryKind.LINK, self._links), (EntryKind.FILE, self._files)):
            if path in names:
                return Attributes(kind, 0o644, 1, 0)
        if path in self._folders:
            return Attributes(EntryKind.FOLDER, 0o755, 0, 0)
        raise HostError(FailureCode.NOT_FOUND, "not there")

    async def target(self, path: bytes) -> bytes:
        return self._links[path]


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        (b"", b"/"),
        (b"/..//./..", b"/"),
        (b"/a/b/../../../a/b/file", b"/a/b/file"),
        (b"absolute", b"/a/b/file"),
        (b"/a/up", b"/top"),
        (b"/folder/file", b"/a/b/file"),
        (b"/folder/../up", b"/top"),
        (b"/chain", b"/a/b/file"),
    ],
)
async def test_links_and_dots_stay_within_the_tree(path: bytes, leads_to: bytes) -> None:
    tree = Tree(
        b"a/b/file",
        b"top",
        absolute=b"/a/b/file",
        folder=b"a/./b/",
        a__up=b"../../../../top",
        chain=b"/chained",
        chained=b"folder/../../a/b/file",
    )
    assert (await find(tree, ROOT, path)).path == leads_to


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (b"/circle", FailureCode.CONFLICT),
        (b"/grows", FailureCode.CONFLICT),
        (b"/outside", FailureCode.NOT_FOUND),
        (b"/file/more", FailureCode.NOT_FOUND),
        (b"/" + b"n" * 256, FailureCode.NOT_FOUND),
        (b"/n" * 3000, FailureCode.INVALID),
    ],
)
async def test_what_leads_nowhere_is_refused(path: bytes, code: FailureCode) -> None:
    tree = Tree(b"file", circle=b"circle", grows=b"grows/" + b"x/" * 2000, outside=b"/run/volumes/1/file")
    with pytest.raises(HostError) as refused:
        await find(tree, ROOT, path)
    assert refused.value.code is code


@given(st.binary(max_size=60).filter(lambda name: b"\0" not in name))
def test_every_name_has_a_path_that_can_be_shown_and_leads_back(name: bytes) -> None:
    shown = shown_name(name)
    assert path_bytes(shown) == name
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize("path", ["/100%", "/%4", "/%g1", "/%00", "/\0"])
def test_a_path_that_no_name_has_is_none(path: str) -> None:
    with pytest.raises(ValueError, match=r"%|zero byte"):
        path_bytes(path)


def message(kind: int, number: int, body: bytes) -> bytes:
    return struct.pack(">IBI", 5 + len(body), kind, number) + body


STATUS, HANDLE, DATA, NAME = 101, 102, 103, 104


@pytest.mark.parametrize(
    "answer",
    [
        message(DATA, 1, b""),
        message(HANDLE, 7, b"\0\0\0\1h"),
        message(HANDLE, 1, b"\0\0\1\0h"),
        message(HANDLE, 1, b""),
        b"\xff\xff\xff\xff",
        b"\0\0\0\0\0\0\0\0",
        b"",
        message(HANDLE, 1, b"\0\0\0\1h") + message(NAME, 2, b"\0\0\0\0"),
        message(HANDLE, 1, b"\0\0\0\1h") + message(NAME, 2, b"\xff\xff\xff\xff\0\0\0\1x"),
        message(HANDLE, 1, b"\0\0\0\1h") + message(STATUS, 2, b""),
    ],
)
async def test_an_answer_that_is_none_ends_it(answer: bytes) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    server = Sftp(ours)
    await theirs.send_all(answer)
    await theirs.send_eof()
    with pytest.raises(HostError):
        await server.entries(b"/", 10)
    assert await theirs.receive_some()
    with pytest.raises(HostError):
        await server.entries(b"/", 10)
    await ours.aclose()
    assert await theirs.receive_some() == b"", "something is asked of what has answered wrongly"


async def test_a_server_that_says_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    ours, _theirs = trio.testing.memory_stream_pair()
    server = Sftp(ours)
    for code in (FailureCode.TIMED_OUT, FailureCode.INTERRUPTED):
        with pytest.raises(HostError) as refused:
            await server.attributes(b"/")
        assert refused.value.code is code


async def test_a_folder_that_never_ends_is_cut() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    entry = b"\0\0\0\1x" + b"\0\0\0\0" + b"\0\0\0\0"
    replies = [message(HANDLE, 1, b"\0\0\0\1h")]
    replies += [message(NAME, number, b"\0\0\0\2" + 2 * entry) for number in range(2, 9)]
    await theirs.send_all(b"".join(replies) + message(STATUS, 9, b"\0\0\0\0" * 3))
    entries, cut = await Sftp(ours).entries(b"/", 11)
    assert (len(entries), cut) == (11, True)


class Slow:
    """What shows a copy whose folder has one more entry every minute."""

    async def attributes(self, _: bytes) -> Attributes:
        return Attributes(EntryKind.FOLDER, 0o755, 0, 0)

    async def entries(self, _: bytes, most: int) -> tuple[list[tuple[bytes, Attributes]], bool]:
        await trio.sleep(59.0 * most)
        return [], True


async def test_a_folder_that_answers_slowly_for_ever_is_given_up(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    volume = CopiedVolume(
        number=1, device="vda1", type="ext4", size_bytes=1, state=CopyVolumeState.MOUNTED, system=True
    )
    shown: Any = SimpleNamespace(server=Slow(), volumes=(volume,))
    nothing: Any = None
    files, vm_id, copy_id = CopyFiles(Folders(tmp_path), nothing, nothing), uuid4(), uuid4()
    files._open[copy_id] = opened._Open(vm_id, None, shown, trio.CancelScope())
    began = trio.current_time()
    with pytest.raises(HostError) as refused:
        await files.perform(VmFilesList(vm_id=vm_id, copy_id=copy_id, volume=0, path="/", offset=0), silent)
    assert refused.value.code is FailureCode.TIMED_OUT
    assert trio.current_time() - began == opened.QUESTION_SECONDS


async def test_of_an_owners_two_copies_one_gives_way_to_another_owner_and_to_no_third_of_their_own(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    nothing: Any = None
    files, eve, ada = CopyFiles(Folders(tmp_path), nothing, nothing), uuid4(), uuid4()

    async def hold(copy_id: UUID, owner_id: UUID | None) -> None:
        with trio.CancelScope() as scope:
            there = files._open[copy_id] = opened._Open(uuid4(), owner_id, nothing, scope)
            await trio.sleep_forever()
        del files._open[copy_id]
        there.ended.set()

    async def make_way(owner_id: UUID | None) -> None:
        files._opening.add(wanted := uuid4())
        try:
            await files._make_way(owner_id)
        finally:
            files._opening.discard(wanted)

    async with trio.open_nursery() as nursery:
        # (who asks, who has the two that are open and asked for, which of them is closed)
        for asking, owners, closed in (
            (ada, (eve, eve), 1),
            (eve, (eve, eve), None),
            (ada, (eve, ada), None),
            (uuid4(), (eve, ada), None),
            (ada, (None, None), None),
            (None, (eve, eve), 1),
        ):
            copies = [uuid4(), uuid4()]
            for copy_id, owner_id in zip(copies, owners, strict=True):
                nursery.start_soon(hold, copy_id, owner_id)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(60)
            files._open[copies[0]].touch()

            if closed is None:
                with pytest.raises(HostError) as refused:
                    await make_way(asking)
                assert refused.value.code is FailureCode.CAPACITY
                assert list(files._open) == copies
            else:
                await make_way(asking)
                assert list(files._open) == [copies[1 - closed]]
            for there in list(files._open.values()):
                await there.close()
