"""Verifies that the target still has what was stored: each day a seventh of a store's files is read and digested.

restic assumes that everything in its index is stored, whatever has happened to the files: after a loss, the next backup
is reported as complete, and cannot be restored. restic names each data file by the SHA-256 of its content, so no key is
needed to verify a file.

Invariant: nothing is destroyed. A file that has changed is moved out of the repository's data (`mounted_tree`), where
restic does not look for it, so that the next copy stores those of its blocks again that the disk still has.

A target that is not on the node is not read at all: its traffic costs money, and S3 servers keep digests of their own.
"""

from __future__ import annotations

from datetime import date

SHARES = 7  # With seven shares, a store of 1 TiB has some 150 GiB read each day.


def share_of(day: date) -> int:
    """The share of the data files to verify on this day: another one each day, and another one on the same weekday of
    the next week. So daily runs verify each share within two weeks, and weekly runs within seven."""
    # Computed from the day and the week: from the day alone, a run once a week would always read the same share,
    # because seven days are a multiple of seven shares.
    ordinal = day.toordinal()
    return (ordinal + ordinal // SHARES) % SHARES
