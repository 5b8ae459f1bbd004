"""Up to where the inbox of events is known: which ids may still turn up.

Ids are drawn before the commit that makes their rows visible, so a row can appear below one that was moved already. To
find it the sequencer need not look through the whole inbox, where the rows it moved stay in the index for as long as
somebody holds a transaction open: it looks above the highest id it has moved, and at the gaps below. Were a gap missed,
the events of a transaction could be numbered after those of one that had waited for it.

An example: with 7 and 10 moved the frontier is at 10, with gaps at 8 and 9. Should 9 become visible it is moved at the
next look; should 8 have been rolled back it stays a gap until every transaction is over that was running when it was
looked at, and is forgotten then.
"""

from __future__ import annotations

from collections.abc import Sequence


class Frontier:
    """`last_drawn` is the last id that was drawn when the sequencer took over; what is below it may be anything yet."""

    def __init__(self, last_drawn: int) -> None:
        self.highest = last_drawn
        self.gaps: set[int] = set()
        self._settled = False
        # Those gaps, and the end of the transaction ids then, that the last check found: see `check`.
        self._doubtful: frozenset[int] = frozenset()
        self._over_at: int | None = None

    @property
    def low(self) -> int:
        """Ids above this are to be looked at, besides the gaps."""
        return self.highest if self._settled else 0

    def moved(self, ids: Sequence[int]) -> None:
        """These were visible, and are in the log now."""
        self.gaps.difference_update(ids)
        highest = max(ids, default=self.highest)
        if highest > self.highest:
            self.gaps.update(set(range(self.highest + 1, highest)).difference(ids))
            self.highest = highest

    def check(self, oldest_running: int, next_transaction: int) -> None:
        """Forget gaps that nobody can fill any more: call it every few seconds after a look through everything, with
        the oldest transaction id that was in progress before that look, and the next that was to be given out.

        A gap of the last check whose transaction is over is one of a rollback. The seconds between two checks cover
        the moment between drawing an id and having a transaction id.
        """
        if self._over_at is not None and oldest_running >= self._over_at:
            self.gaps -= self._doubtful
            self._settled = True
            self._over_at = None
        if self._over_at is None:
            self._doubtful, self._over_at = frozenset(self.gaps), next_transaction
