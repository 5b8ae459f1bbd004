"""What a guest has written since a copy, as its QEMU records it: a dirty bitmap of each disk, under a name that no
other has.

Invariants: a bitmap is in the memory of the guest's QEMU and on no disk, so it ends with that process, which holds the
disk's lock as long as it lives. Whatever writes the disk beside the guest (a restoration, a snapshot put back, another
node, qemu-img) comes after the bitmap's end, and a disk without its bitmap is read as a whole. A bitmap is begun before
the moment that its copy is of, and looked at after that of the next: it has every block that differs between the two,
and some more.
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


def begin(domain: Any, paths: Mapping[int, Path], keep: Collection[str]) -> dict[int, str]:
    """Begin a bitmap of each disk of a guest that runs, and remove those of before but for `keep`. The new ones' names;
    a disk that the guest does not have has none."""
    nodes = _nodes(domain, paths)
    for node, names in _bitmaps(domain, nodes.values()).items():
        for name in names - set(keep):
            monitor(domain, "block-dirty-bitmap-remove", {"node": node, "name": name})
    begun = {}
    for index, node in nodes.items():
        name = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-dirty-bitmap-add", {"node": node, "name": name} | _OF_A_BLOCK)
        begun[index] = name
    return begun


def show(domain: Any, path: Path, mark: str) -> str | None:
    """Have the server of the backup job that is under way tell what this bitmap has by now: the name of the export and
    of the bitmap in it. None where the disk is without the bitmap."""
    for node in _nodes(domain, {0: path}).values():
        if mark not in _bitmaps(domain, [node])[node]:
            return None
        # A bitmap that records cannot be shown, so a copy of it is.
        shown = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-dirty-bitmap-add", {"node": node, "name": shown, "disabled": True} | _OF_A_BLOCK)
        monitor(domain, "block-dirty-bitmap-merge", {"node": node, "target": shown, "bitmaps": [mark]})
        told = {"type": "nbd", "id": shown, "node-name": node, "name": shown, "bitmaps": [shown]}
        monitor(domain, "block-export-add", told)
        return shown
    return None


def count(domain: Any, paths: Mapping[int, Path], marks: Mapping[int, str]) -> int | None:
    """The bytes that these bitmaps have by now in all; None where a disk is without its own."""
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
    """Have QEMU serve what the guest writes to, as it is, to be read: the names of the exports."""
    names = {}
    monitor(domain, "nbd-server-start", {"addr": {"type": "unix", "data": {"path": str(address)}}})
    for index, node in _nodes(domain, paths).items():
        name = names[index] = f"{_PREFIX}{uuid4()}"
        monitor(domain, "block-export-add", {"type": "nbd", "id": name, "node-name": node, "name": name})
    return names


def hide(domain: Any) -> None:
    """End what `show_disks` began, if it is there."""
    if domain.isActive():
        with suppress(HostError):
            monitor(domain, "nbd-server-stop", {})


async def written(socket: Path, shown: str) -> list[tuple[int, int]]:
    """What the bitmap of this export has, as (offset, length)."""
    told = await extents(socket, shown, f"qemu:dirty-bitmap:{shown}")
    return [(offset, length) for offset, length, flags in told if flags & 1]


def monitor(domain: Any, command: str, arguments: dict[str, Any]) -> Any:
    """QEMU's answer. libvirt knows bitmaps only as checkpoints, which are in the disk and outlive the process."""
    said = json.loads(
        libvirt_qemu.qemuMonitorCommand(domain, json.dumps({"execute": command, "arguments": arguments}), 0)
    )
    if "error" in said:
        raise HostError(FailureCode.HOST, f"QEMU refused {command}: {said['error'].get('desc')}")
    return said["return"]


def _nodes(domain: Any, paths: Mapping[int, Path]) -> dict[int, str]:
    """QEMU's names of what the guest writes to. A backup job puts a filter of its own above these."""
    found = {
        str(each["file"]): str(each["node-name"])
        for each in monitor(domain, "query-named-block-nodes", {"flat": True})
        if each["drv"] == "qcow2"
    }
    return {index: found[str(path)] for index, path in paths.items() if str(path) in found}


def _bitmaps(domain: Any, nodes: Collection[str]) -> dict[str, set[str]]:
    """Of ours, those that record."""
    told = {each["node-name"]: each for each in monitor(domain, "query-named-block-nodes", {"flat": True})}
    return {
        node: {
            str(bitmap["name"])
            for bitmap in told[node].get("dirty-bitmaps", ())
            if str(bitmap.get("name", "")).startswith(_PREFIX)
        }
        for node in nodes
    }
