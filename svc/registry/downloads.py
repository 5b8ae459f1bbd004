"""Which downloads are under way, so that one of a thousand pages leaves one row in the audit.

Kept in the process: after a restart a download that goes on leaves a second row, and none is ever without.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID

import trio

SECONDS: Final = 3600.0
MOST: Final = 10_000

Download = tuple[UUID | None, UUID, str, str]
"""Who, of which site, which file, which version of it."""


class Downloads:
    def __init__(self) -> None:
        self._begun: OrderedDict[Download, float] = OrderedDict()

    def begins(self, download: Download, *, anew: bool) -> bool:
        """Whether this page is one that a row has to tell of: the first, or one of a download nobody has heard of."""
        now = trio.current_time()
        known = self._begun.pop(download, -SECONDS) > now - SECONDS
        self._begun[download] = now
        while len(self._begun) > MOST:
            self._begun.popitem(last=False)
        return anew or not known
