"""Which copies are made from which: a copy of what was written since stands on the one before it.

Pure rules. A copy that is not kept any more, and that another stands on, is dropped: it counts for nobody, and goes
with the last that needs it. Which are dropped says a note at the target, a snapshot of its own: those of disks never
change, since they may be read meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

MOST_CHANGES: Final = 30
"""Copies of changes after one of the whole disk: a restoration reads all of them."""
NOTE: Final = "dropped"
_ON: Final = "on-"


@dataclass(frozen=True)
class Snapshot:
    """The content of one disk in one copy. `by_blocks`: it is digested by blocks, and may be stood on. `on`: the copy
    that it has the changes since; None: it is the whole disk."""

    id: str
    copy_id: UUID
    disk: str
    by_blocks: bool = False
    on: UUID | None = None

    @property
    def numbered(self) -> bool:
        """Blocks, each after its number; else the whole disk from end to end, as copies were made at first."""
        return not self.disk.endswith(".raw")

    @property
    def name(self) -> str:
        """Of the disk: the same in every copy."""
        return self.disk.partition(".")[0]


@dataclass(frozen=True)
class Kept:
    """What a target has of a machine. `notes`: the ids of the notes, the copies in which are `dropped`."""

    snapshots: tuple[Snapshot, ...]
    dropped: frozenset[UUID] = frozenset()
    notes: tuple[str, ...] = ()

    def of(self, copy_id: UUID) -> list[Snapshot]:
        """Of a copy that is there to be restored."""
        return [each for each in self.snapshots if each.copy_id == copy_id and copy_id not in self.dropped]

    def chain(self, copy_id: UUID, disk: str) -> list[Snapshot]:
        """What the disk's content in a copy is made of, the whole disk first; empty where something of it is not there,
        or the copy was dropped."""
        found = [] if copy_id in self.dropped else self._below(copy_id, disk)
        return found[::-1] if found and found[-1].on is None else []

    def without(self, forgotten: Collection[UUID]) -> tuple[list[Snapshot], frozenset[UUID]]:
        """What goes, and which copies are dropped, once these are not kept any more."""
        left = {each.copy_id for each in self.snapshots} - self.dropped - set(forgotten)
        needed = {
            part.id
            for each in self.snapshots
            if each.copy_id in left
            for part in (each, *self._below(each.copy_id, each.name))
        }
        gone = [each for each in self.snapshots if each.id not in needed]
        return gone, frozenset(each.copy_id for each in self.snapshots if each.id in needed) - left

    def _below(self, copy_id: UUID, disk: str) -> list[Snapshot]:
        """A copy's own part and those that it stands on, as far as they are there."""
        of_disk = {each.copy_id: each for each in self.snapshots if each.name == disk}
        found: list[Snapshot] = []
        wanted: UUID | None = copy_id
        while wanted is not None and (each := of_disk.get(wanted)) is not None and each not in found:
            found.append(each)
            wanted = each.on
        return found


def tags_of(copy_id: UUID, on: UUID | None) -> tuple[str, ...]:
    """Two, so that an agent of the release before, which looks for one, leaves alone what it could not restore."""
    return str(copy_id), "blocks" if on is None else f"{_ON}{on}"


def tags_of_note(dropped: Iterable[UUID]) -> tuple[str, ...]:
    return NOTE, *sorted(str(copy_id) for copy_id in dropped)


def kept(entries: Iterable[tuple[str, Collection[str], str]]) -> Kept:
    """By the id, the tags and the path of each snapshot; what is not ours is left out."""
    snapshots, dropped, notes = [], set[UUID](), []
    for id, tags, path in entries:
        copies = [UUID(tag) for tag in tags if _is_id(tag)]
        if NOTE in tags:
            dropped.update(copies)
            notes.append(id)
        elif len(copies) == 1:
            on = next((UUID(tag.removeprefix(_ON)) for tag in tags if tag.startswith(_ON)), None)
            disk = path.removeprefix("/")
            snapshots.append(Snapshot(id, copies[0], disk, by_blocks=len(tags) > 1, on=on))
    return Kept(tuple(snapshots), frozenset(dropped), tuple(notes))


def _is_id(tag: str) -> bool:
    try:
        UUID(tag)
    except ValueError:
        return False
    return True
