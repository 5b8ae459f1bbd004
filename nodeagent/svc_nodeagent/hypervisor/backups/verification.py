"""Whether the target still has what it was given: a seventh of a store's files a day is read and digested.

restic takes what its index names for kept, whatever has become of the file: a backup after a loss is told as complete
and cannot be read. It names each file of data by the SHA-256 of its content, so no key is needed to tell.

Invariant: nothing is destroyed; a file that is not what it was is put beside the repository's data (`mounted_tree`),
where restic does not look, so that the next copy brings again what of it the disk still has.
"""

from __future__ import annotations

from datetime import date

SHARES = 7


def share_of(day: date) -> int:
    """Another one each day, and on the same weekday of another week: each comes within a fortnight of daily runs, and
    within seven weekly ones."""
    ordinal = day.toordinal()
    return (ordinal + ordinal // SHARES) % SHARES
