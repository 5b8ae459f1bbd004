"""Records what a guest has written since a copy: its QEMU keeps a dirty bitmap for each disk, under a unique name.

Invariants: a bitmap exists only in the memory of the guest's QEMU, so it ends with that process. The process holds the
lock of the disk as long as it runs. Anything else that writes the disk (a restoration, a snapshot put back, another
node, qemu-img) can do so only after that process, and so the bitmap, has ended; a disk without its bitmap is read as a
whole. A bitmap is started before the snapshot of one copy, and read after the snapshot of the next copy: it contains
every block that differs between these two snapshots, and may contain more.

Rejected: libvirt's checkpoints and persistent bitmaps. They are stored in the disk's file and outlive the process, so
they would miss writes made while no guest runs (a snapshot put back, qemu-img). The price of bitmaps in memory is one
whole read after each start of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import libvirt_qemu

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES
from svc_nodeagent.hypervisor.backups.nbd import extents
from svc_nodeagent.protocol import FailureCode

_PREFIX: Final = "svc-"
_OF_A_BLOCK: Final = {"granularity": BLOCK_BYTES}


def start(domain: Any, paths: Mapping[int, Path], keep: Collection[str]) -> dict[int, str]:
    """Start a bitmap for each disk of a running guest, and remove the earlier ones except `keep`. Returns the new
    names; a disk that the guest does not have gets none."""
    # Old bitmaps are removed because each makes every write of the guest slower. Those in `keep` stay, because the
    # backup under way may still be based on them.
    nodes = _nodes(domain, paths)
    for node, names in _bitmaps(domain, nodes.values()).items():
        for name in names - set(keep):
            monitor(domain, "block-dirty-bitmap-remove", {"node": node, "name": name})
    started = {}
    for index, node in nodes.items():
        name = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-dirty-bitmap-add", {"node": node, "name": name} | _OF_A_BLOCK)
        started[index] = name
    return started


def show(domain: Any, path: Path, mark: str) -> str | None:
    """Have the server of the running backup job show what this bitmap has recorded by now. Returns the name of the
    export, which is also the bitmap's name in it; None if the disk does not have the bitmap."""
    for node in _nodes(domain, {0: path}).values():
        if mark not in _bitmaps(domain, [node])[node]:
            return None
        # QEMU does not export a bitmap that is still recording, so a disabled copy of the bitmap is exported.
        shown = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-dirty-bitmap-add", {"node": node, "name": shown, "disabled": True} | _OF_A_BLOCK)
        monitor(domain, "block-dirty-bitmap-merge", {"node": node, "target": shown, "bitmaps": [mark]})
        told = {"type": "nbd", "id": shown, "node-name": node, "name": shown, "bitmaps": [shown]}
        monitor(domain, "block-export-add", told)
        return shown
    return None


def count(domain: Any, paths: Mapping[int, Path], marks: Mapping[int, str]) -> int | None:
    """How many bytes these bitmaps have marked by now; None if a disk does not have its bitmap."""
    told = {each["node-name"]: each for each in monitor(domain, "query-named-block-nodes", {"flat": True})}
    total, nodes = 0, _nodes(domain, paths)
    for index in paths:
        bitmaps = told[nodes[index]].get("dirty-bitmaps", ()) if index in nodes else ()
        recorded = {each.get("name"): int(each["count"]) for each in bitmaps}
        if index not in marks or marks[index] not in recorded:
            return None
        total += recorded[marks[index]]
    return total


def show_disks(domain: Any, paths: Mapping[int, Path], address: Path) -> dict[int, str]:
    """Have QEMU serve the disks as the guest writes to them, for reading. Returns the names of the exports."""
    names = {}
    monitor(domain, "nbd-server-start", {"addr": {"type": "unix", "data": {"path": str(address)}}})
    for index, node in _nodes(domain, paths).items():
        name = names[index] = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-export-add", {"type": "nbd", "id": name, "node-name": node, "name": name})
    return names


def hide(domain: Any) -> None:
    """End the server that `show_disks` has started, if there is one."""
    if domain.isActive():
        # QEMU refuses to stop a server that does not run.
        with suppress(HostError):
            monitor(domain, "nbd-server-stop", {})


async def dirty_extents(socket: Path, shown: str) -> list[tuple[int, int]]:
    """The dirty extents in the bitmap of this export, as (offset, length)."""
    # In the contexts of QEMU's bitmaps, bit 0 of the flags means "dirty".
    told = await extents(socket, shown, f"qemu:dirty-bitmap:{shown}")
    return [(offset, length) for offset, length, flags in told if flags & 1]


def monitor(domain: Any, command: str, arguments: dict[str, Any]) -> Any:
    """QEMU's answer to this command. The command goes to QEMU's monitor, since libvirt knows bitmaps only as
    checkpoints."""
    said = json.loads(
        libvirt_qemu.qemuMonitorCommand(domain, json.dumps({"execute": command, "arguments": arguments}), 0)
    )
    if "error" in said:
        raise HostError(FailureCode.HOST, f"QEMU refused {command}: {said['error'].get('desc')}")
    return said["return"]


def _nodes(domain: Any, paths: Mapping[int, Path]) -> dict[int, str]:
    """QEMU's names of the block nodes to which the guest writes. A backup job inserts a filter above them."""
    found = {
        str(each["file"]): str(each["node-name"])
        for each in monitor(domain, "query-named-block-nodes", {"flat": True})
        if each["drv"] == "qcow2"
    }
    return {index: found[str(path)] for index, path in paths.items() if str(path) in found}


def _bitmaps(domain: Any, nodes: Collection[str]) -> dict[str, set[str]]:
    """The bitmaps that the agent has started, by node."""
    told = {each["node-name"]: each for each in monitor(domain, "query-named-block-nodes", {"flat": True})}
    return {
        node: {
            str(bitmap["name"])
            for bitmap in told[node].get("dirty-bitmaps", ())
            if str(bitmap.get("name", "")).startswith(_PREFIX)
        }
        for node in nodes
    }
