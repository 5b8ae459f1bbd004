"""Files are had out of a copy by a small system in a QEMU of its own, whatever a guest has made of its disk."""

from __future__ import annotations

import base64
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.orphans import end_orphans
from svc_nodeagent.hypervisor.copy_files import opened, reader
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.protocol import (
    CopyVolumeState,
    EntryKind,
    FailureCode,
    VmFilesClose,
)
from tests.nodeagent.hypervisor.builders import silent
from tests.nodeagent.hypervisor.copy_node import MOST, VM, Node, a_node
from tests.nodeagent.hypervisor.file_systems import damaged, ext4, grow_tree, logical_volume, luks, partitioned

pytestmark = [pytest.mark.system, pytest.mark.isolated]

OPENED, KILLED = "copy_files.opened", -9
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def node(data_folder: Path, rescue_system: Path) -> AsyncIterator[Node]:
    async with a_node(data_folder, rescue_system) as made:
        yield made


def qemus_of(folder: Path) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            line = (each / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line.startswith(b"qemu-system") and bytes(folder) in line:
            found.append(int(each.name))
    return found


async def test_a_file_is_had_out_of_a_copy_with_names_and_links_of_any_kind(node: Node, tmp_path: Path) -> None:
    large = random.Random(4).randbytes(2 * MOST + 12_345)
    files = {
        b"etc/passwd": b"root of the guest\n",
        b"usr/bin/large": large,
        b"home/a b/caf\xc3\xa9 100%": b"text",
        b"home/a b/\xff\n\x1b": b"bytes",
        b"home/a b/empty": b"",
    }
    links = {
        b"home/absolute": b"/etc/passwd",
        b"home/up": b"../../../../../../../etc/passwd",
        b"home/circle": b"circle",
        b"home/folder": b"/home/a b",
        b"home/nowhere": b"/run/volumes/list",
    }
    grow_tree(tmp_path / "tree", files, links)
    operation = await node.copied(partitioned(ext4(tmp_path / "1", tmp_path / "tree", journal_left=True)))
    copy_id = operation.copy_id
    assert await node.code_of(copy_id, "/") is FailureCode.INTERRUPTED

    [volume] = (await node.open(operation)).volumes
    assert (volume.device, volume.type, volume.state, volume.system) == ("vda1", "ext4", CopyVolumeState.MOUNTED, True)
    [qemu] = qemus_of(node.folders.root)
    status = Path(f"/proc/{qemu}/status").read_text()
    # It is nobody's process: no account, no group of the host's but what KVM needs, and system calls are filtered
    assert "Uid:\t2147400000\t2147400000" in status
    assert "Seccomp:\t2" in status

    assert [each.name for each in (await node.list(copy_id, "/")).entries] == ["etc", "home", "lost+found", "usr"]
    home = await node.list(copy_id, "/home/folder/../folder/")
    assert (home.path, home.volume) == ("/home/a b", 1)
    assert {each.name for each in home.entries} == {"café 100%25", "%FF%0A%1B", "empty"}
    assert await node.content(copy_id, "/home/a b/café 100%25") == b"text"
    assert await node.content(copy_id, "/home/a b/%FF%0A%1B") == b"bytes"
    assert await node.content(copy_id, "/home/a b/empty") == b""
    assert await node.content(copy_id, "usr/bin/large") == large
    part = await node.part(copy_id, "/usr/bin/large", offset=MOST + 1, length=10)
    assert base64.b64decode(part.data) == large[MOST + 1 : MOST + 11]
    # Links lead within the guest's own tree, however they are written
    for link in ("absolute", "up"):
        assert await node.content(copy_id, f"/home/{link}") == files[b"etc/passwd"]
    assert await node.content(copy_id, "/../../etc/passwd") == files[b"etc/passwd"]
    [absolute] = [each for each in (await node.list(copy_id, "/home")).entries if each.name == "absolute"]
    assert (absolute.kind, absolute.target) == (EntryKind.LINK, "/etc/passwd")
    assert await node.code_of(copy_id, "/home/nowhere") is FailureCode.NOT_FOUND
    assert await node.code_of(copy_id, "/home/circle") is FailureCode.CONFLICT
    assert await node.code_of(copy_id, "/etc/passwd") is FailureCode.CONFLICT
    assert await node.code_of(copy_id, "/etc/%zz") is FailureCode.INVALID
    with pytest.raises(HostError) as folder:
        await node.part(copy_id, "/etc")
    assert folder.value.code is FailureCode.CONFLICT

    # Opened again it is the same; closed, nothing of it is left
    assert (await node.open(operation)).volumes == (volume,)
    assert qemus_of(node.folders.root) == [qemu]
    await node.files.perform(VmFilesClose(vm_id=VM, copy_id=copy_id), silent)
    await node.until_closed()
    assert qemus_of(node.folders.root) == []
    assert await node.code_of(copy_id, "/") is FailureCode.INTERRUPTED


@pytest.mark.parametrize(("accelerator", "groups"), [(Accelerator.KVM, " 4711"), (Accelerator.TCG, "")])
async def test_what_shows_files_has_the_group_of_kvm_where_it_uses_kvm_and_no_other(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator, groups: str
) -> None:
    device, emulator = data_folder / "kvm", data_folder / "emulator"
    device.touch()
    os.chown(device, 0, 4711)
    emulator.write_text("#!/bin/sh\ngrep ^Groups: /proc/self/status >&2\n")
    emulator.chmod(0o755)
    monkeypatch.setattr(reader, "DEVICE", device)
    monkeypatch.setattr(reader, "EMULATOR", str(emulator))

    with pytest.raises(HostError, match=f"did not start: Groups:{groups}$"):
        async with reader.showing([], data_folder, accelerator):
            raise AssertionError("it shows nothing")


async def test_each_volume_is_told_of_and_a_copy_that_nobody_asks_for_is_closed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_tree(tmp_path / "tree", {b"kept": b"kept"}, {})
    whole = ext4(tmp_path / "1", tmp_path / "tree")
    operation = await node.copied(partitioned(damaged(whole), luks(), whole), whole)

    volumes = {each.device: each for each in (await node.open(operation)).volumes}

    assert {name: each.state for name, each in volumes.items()} == {
        "vda1": CopyVolumeState.BROKEN,
        "vda2": CopyVolumeState.ENCRYPTED,
        "vda3": CopyVolumeState.MOUNTED,
        "vdb": CopyVolumeState.MOUNTED,
    }
    for device in ("vda3", "vdb"):
        listed = await node.list(operation.copy_id, "/", volumes[device].number)
        assert "kept" in [each.name for each in listed.entries]
    with pytest.raises(HostError, match="damaged"):
        await node.list(operation.copy_id, "/", volumes["vda1"].number)
    with pytest.raises(HostError, match="encrypted"):
        await node.list(operation.copy_id, "/", volumes["vda2"].number)

    monkeypatch.setattr(opened, "MOST_OPEN", 1)
    with pytest.raises(HostError) as full:
        await node.open(await node.copied(bytes(MOST)))
    assert full.value.code is FailureCode.CAPACITY
    monkeypatch.setattr(opened, "IDLE_SECONDS", 0.5)
    await node.list(operation.copy_id, "/")
    await node.until_closed()
    assert qemus_of(node.folders.root) == []


async def test_a_volume_of_lvm_is_shown_whatever_its_name(node: Node, tmp_path: Path) -> None:
    """Also where the copy has a journal to be written back, which is done in memory beside it."""
    grow_tree(tmp_path / "tree", {b"kept": b"kept"}, {})
    disk = logical_volume("over", "1", ext4(tmp_path / "1", tmp_path / "tree", journal_left=True))
    operation = await node.copied(disk)

    [volume] = (await node.open(operation)).volumes

    assert (volume.device, volume.state) == ("over-1", CopyVolumeState.MOUNTED)
    assert await node.content(operation.copy_id, "/kept") == b"kept"


async def test_the_copy_that_nobody_asks_for_longest_gives_way_to_another(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grow_tree(tmp_path / "tree", {b"kept": b"kept"}, {})
    whole = ext4(tmp_path / "1", tmp_path / "tree")
    monkeypatch.setattr(opened, "KEPT_SECONDS", 0.0)
    looked_at, forgotten, wanted = [await node.copied(whole) for _ in range(3)]
    await node.open(looked_at)
    await node.open(forgotten)
    await node.list(looked_at.copy_id, "/")

    await node.open(wanted)

    assert await node.code_of(forgotten.copy_id, "/") is FailureCode.INTERRUPTED
    for copy in (looked_at, wanted):
        assert await node.content(copy.copy_id, "/kept") == b"kept"
    assert len(qemus_of(node.folders.root)) == len(os.listdir(node.folders.copy_files)) == opened.MOST_OPEN


async def test_what_is_not_what_was_copied_is_not_shown_and_leaves_nothing(node: Node) -> None:
    operation = await node.copied(bytes(MOST))
    changed = operation.model_copy(update={"disks": (operation.disks[0].model_copy(update={"digest": "0" * 64}),)})
    with pytest.raises(HostError, match="than was backed up"):
        await node.open(changed)
    assert (os.listdir(node.folders.copy_files), qemus_of(node.folders.root)) == ([], [])


async def test_killed_while_it_shows_a_copy_nothing_of_it_is_left_for_the_next_agent(
    data_folder: Path, rescue_system: Path
) -> None:
    killed = await trio.run_process(
        [sys.executable, "-m", "tests.nodeagent.hypervisor.copy_node", str(data_folder), str(rescue_system)],
        env={"PATH": os.environ["PATH"], "SVC_FAULT_POINT": OPENED},
        cwd=ROOT,
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    assert killed.returncode == KILLED, killed.stderr.decode()[-3000:]
    assert len(list(Folders(data_folder).copy_files.iterdir())) == 1

    end_orphans(data_folder)
    async with a_node(data_folder, rescue_system):
        assert not await trio.Path(Folders(data_folder).copy_files).exists()
        assert qemus_of(data_folder) == []
