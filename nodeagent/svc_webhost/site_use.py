"""Resource use of each site's programs, from the control groups that the launcher has put them into.

The groups are found through the processes in them, so it works for every launcher. Processes alone would not show
memory outside of any process's size (memfd, tmpfs), nor programs that end between two looks.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_GROUP: Final = re.compile(r"site-(\d+)|svc-site-(\d+)\.slice")
"""The name of a site's group: the keeper's folder, or systemd's slice."""
_UNLIMITED: Final = 1 << 62
"""cgroup v1 shows an unlimited value as a number."""
_UNIFIED: Final = ""
"""The key of cgroup v2 among the controllers of v1."""


@dataclass(frozen=True)
class SiteUse:
    """Since the group was created: `processor_seconds`; `killed`, the programs that were killed for lack of memory;
    `refused`, the processes and threads that the limit of their number prevented. `written_bytes` is what the running
    programs, and their ended children, have written to disks. None: the kernel does not count it here."""

    processor_seconds: float | None = None
    memory_bytes: int | None = None
    killed: int | None = None
    refused: int | None = None
    written_bytes: int | None = None


def site_uses(proc: Path = Path("/proc")) -> dict[int, SiteUse]:
    """The use of each site with running programs, by site number. Raises OSError. Blocks."""
    mounts = dict(_mounts((proc / "self/mounts").read_text()))
    folders: dict[int, dict[str, Path]] = {}
    written: Counter[int] = Counter()
    for process in proc.iterdir():
        if process.name.isdecimal():
            try:
                lines = (process / "cgroup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # The process has ended.
            found = [group for group in _groups(lines) if group[1] in mounts]
            for number, controller, path in found:
                folders.setdefault(number, {})[controller] = mounts[controller] / path
            if found and (bytes_of_process := _value(process, "io", "write_bytes:")) is not None:
                written[found[0][0]] += bytes_of_process
    return {number: replace(_use(of), written_bytes=written.get(number)) for number, of in folders.items()}


def group_use(pid: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Bytes of a process's memory group that are not in files on the disk, each page counted once, and its limit. None
    if it has no limit, or it cannot be read. Blocks."""
    try:
        mounts = dict(_mounts((proc / "self/mounts").read_text()))
        lines = [line.split(":", 2) for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
        for _, controllers, path in lines:
            unified = controllers == _UNIFIED
            if not (unified or "memory" in controllers.split(",")):
                continue
            controller = _UNIFIED if unified else "memory"
            folder = mounts[controller] / path.strip("/")
            names = ("anon", "shmem") if unified else ("total_rss", "total_shmem")
            limit = folder / ("memory.max" if unified else "memory.limit_in_bytes")
            if not limit.exists() or not (most := limit.read_text().strip()).isdecimal() or int(most) >= _UNLIMITED:
                continue
            return sum(_value(folder, "memory.stat", name) or 0 for name in names), int(most)
    except (OSError, KeyError, ValueError):
        pass  # The process has ended, or is not visible here.
    return None


def _mounts(text: str) -> Iterator[tuple[str, Path]]:
    """The mount point of each v1 controller, and of v2."""
    for line in text.splitlines():
        _, folder, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            yield _UNIFIED, Path(folder)
        elif kind == "cgroup":
            yield from ((option, Path(folder)) for option in options.split(","))


def _groups(lines: str) -> Iterator[tuple[int, str, str]]:
    """Site number, controller and path of the site's group, for each hierarchy in which a process is in one."""
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        for place, part in enumerate(parts):
            if found := _GROUP.fullmatch(part):
                for controller in controllers.split(","):
                    yield int(found[1] or found[2]), controller, "/".join(parts[: place + 1])
                break


def _use(folders: Mapping[str, Path]) -> SiteUse:
    unified = folders.get(_UNIFIED)
    seconds = _scaled(_value(unified, "cpu.stat", "usage_usec"), 1e-6)
    if seconds is None:
        seconds = _scaled(_value(folders.get("cpuacct"), "cpuacct.usage"), 1e-9)
    memory = _value(unified, "memory.current")
    killed = _value(unified, "memory.events", "oom_kill")
    if memory is None:
        legacy = folders.get("memory")
        memory = _value(legacy, "memory.usage_in_bytes")
        killed = _summed(legacy, "memory.oom_control", "oom_kill")
    return SiteUse(seconds, memory, killed, _summed(folders.get("pids", unified), "pids.events", "max"))


def _summed(folder: Path | None, name: str, key: str) -> int | None:
    """The sum of a figure over the group and its children: for this group's limit, v1 counts events only in the
    process's own group, one level below, and so does v2 for refused processes before Linux 6.11."""
    counts = [count for each in (folder, *_beneath(folder)) if (count := _value(each, name, key)) is not None]
    return sum(counts) if counts else None


def _beneath(folder: Path | None) -> list[Path]:
    try:
        return [] if folder is None else [Path(each.path) for each in os.scandir(folder) if each.is_dir()]
    except OSError:
        return []  # The group has ended.


def _value(folder: Path | None, name: str, key: str | None = None) -> int | None:
    if folder is None:
        return None
    try:
        text = (folder / name).read_text()
    except OSError:
        return None  # The group does not have this controller, or has ended.
    if key is None:
        return int(text)
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [key]), None)


def _scaled(value: int | None, by: float) -> float | None:
    return None if value is None else value * by
