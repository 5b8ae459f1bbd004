"""Which copies depend on which others: a copy of changes stands on an earlier copy, and cannot be restored without that
one.

These are pure functions. A copy that has expired while another copy stands on it is dropped: it is not listed from then
on, and is removed together with the last copy that needs it. A note at the target, itself a snapshot, names the dropped
copies.

Rejected: tagging dropped snapshots themselves. restic gives a snapshot a new id when it tags it, and somebody may be
reading the snapshot under its old id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

MOST_CHANGES: Final = 30
"""The most copies of changes that follow one of the whole disk. A restoration reads all of them, and if one is lost,
the later ones cannot be restored. So with daily copies the whole disk is copied about once a month."""
NOTE: Final = "dropped"
_ON: Final = "on-"


@dataclass(frozen=True)
class Snapshot:
    """The content of one disk in one copy. `by_blocks`: there are digests of the blocks, so another snapshot may stand
    on this one. `on`: the copy that this one has the changes since; None if it has the whole disk."""

    id: str
    copy_id: UUID
    disk: str
    by_blocks: bool = False
    on: UUID | None = None

    @property
    def numbered(self) -> bool:
        """Whether the content is a sequence of blocks, each preceded by its number; otherwise it is the whole disk from
        its start to its end, as in the first releases."""
        return not self.disk.endswith(".raw")

    @property
    def name(self) -> str:
        """The disk's name, the same in every copy."""
        return self.disk.partition(".")[0]


@dataclass(frozen=True)
class StoreListing:
    """The snapshots of a machine at a target. `notes`: the ids of the notes, which name the `dropped` copies."""

    snapshots: tuple[Snapshot, ...]
    dropped: frozenset[UUID] = frozenset()
    notes: tuple[str, ...] = ()

    def of(self, copy_id: UUID) -> list[Snapshot]:
        """The snapshots of a copy that may be restored; none for a dropped copy."""
        return [each for each in self.snapshots if each.copy_id == copy_id and copy_id not in self.dropped]

    def chain(self, copy_id: UUID, disk: str) -> list[Snapshot]:
        """The snapshots that make the disk's content in a copy, the whole disk first; empty if one of them is missing,
        or the copy was dropped."""
        found = [] if copy_id in self.dropped else self._below(copy_id, disk)
        return found[::-1] if found and found[-1].on is None else []

    def without(self, forgotten: Collection[UUID]) -> tuple[list[Snapshot], frozenset[UUID]]:
        """What follows from the expiry of these copies: the snapshots to remove, and the copies that are dropped from
        then on."""
        # This starts from the snapshots that are still needed, not from those that have expired. So copies that were
        # dropped earlier, and on which no copy stands now, are removed as well.
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
        """A copy's own snapshot and the snapshots that it stands on, up to the first that is missing."""
        # `each not in found` ends the loop if the copies refer to each other in a circle: tags at a target are not
        # trusted.
        of_disk = {each.copy_id: each for each in self.snapshots if each.name == disk}
        found: list[Snapshot] = []
        wanted: UUID | None = copy_id
        while wanted is not None and (each := of_disk.get(wanted)) is not None and each not in found:
            found.append(each)
            wanted = each.on
        return found


def tags_of(copy_id: UUID, on: UUID | None) -> tuple[str, ...]:
    """The tags of a snapshot. There are two of them, so that an agent of an earlier release, which looks for snapshots
    with one tag, does not use these: it could not restore them."""
    return str(copy_id), "blocks" if on is None else f"{_ON}{on}"


def tags_of_note(dropped: Iterable[UUID]) -> tuple[str, ...]:
    return NOTE, *sorted(str(copy_id) for copy_id in dropped)


def parse_listing(entries: Iterable[tuple[str, Collection[str], str]]) -> StoreListing:
    """What the id, the tags and the path of each snapshot say; snapshots that are not ours are left out."""
    # There may be two notes: the newer one was written, and the earlier one was not removed yet. Both record decisions,
    # so both count.
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
    return StoreListing(tuple(snapshots), frozenset(dropped), tuple(notes))


def _is_id(tag: str) -> bool:
    try:
        UUID(tag)
    except ValueError:
        return False
    return True
