"""The part of the event inbox that the sequencer must still read: the ids at which new rows may appear.

A transaction draws its ids before the commit that makes its rows visible, so a row can appear below one that was moved
already. The sequencer must find such a row, but does not scan the whole inbox: moved rows stay in its index for as long
as any transaction is open. It reads the ids above the highest one that it has moved, and the gaps below. If a gap were
missed, the events of a transaction could be numbered after those of a later transaction that had waited for it.

An example: with 7 and 10 moved the frontier is at 10, with gaps at 8 and 9. If 9 becomes visible, the next look moves
it. If 8 was rolled back, it stays a gap until every transaction that was running at the time of the look is over, and
is then forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence


class Frontier:
    """`last_drawn` is the last id drawn when the sequencer took over. Rows with this or a lower id may still appear."""

    def __init__(self, last_drawn: int) -> None:
        self.highest = last_drawn
        self.gaps: set[int] = set()
        self._settled = False
        # `_doubtful`: the gaps that the last check has found. `_over_at`: the next transaction id at that time, see
        # `check`.
        self._doubtful: frozenset[int] = frozenset()
        self._over_at: int | None = None

    @property
    def scan_after(self) -> int:
        """New rows may appear at ids above this one, and at the gaps."""
        return self.highest if self._settled else 0

    def moved(self, ids: Sequence[int]) -> None:
        """Record that the rows with these ids were moved from the inbox to the log."""
        self.gaps.difference_update(ids)
        highest = max(ids, default=self.highest)
        if highest > self.highest:
            self.gaps.update(set(range(self.highest + 1, highest)).difference(ids))
            self.highest = highest

    def check(self, oldest_running: int, next_transaction: int) -> None:
        """Forget gaps that no transaction can fill any longer. Call it every few seconds, after a scan of the whole
        inbox. `oldest_running` and `next_transaction` are, as read before that scan, the oldest transaction id in
        progress and the next one to be assigned.

        A gap that existed at the last check is forgotten once all transactions of that time have ended: its id was
        rolled back. The seconds between two checks cover the moment between drawing an id and getting a transaction id.
        """
        if self._over_at is not None and oldest_running >= self._over_at:
            self.gaps -= self._doubtful
            self._settled = True
            self._over_at = None
        if self._over_at is None:
            self._doubtful, self._over_at = frozenset(self.gaps), next_transaction
