"""Downloads of files in parts. Each part is a JSON object, as every answer of the API is. Running downloads are
remembered, so that a download of a thousand parts leaves one row in the audit.

They are remembered in memory only: a download that continues after a restart leaves a second row.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from uuid import UUID

import trio

from svc.registry.operation import Model

SECONDS: Final = 3600.0
MOST: Final = 10_000

Download = tuple[UUID | None, UUID, str, str]
"""The caller, the site, the file, and the file's version."""


class FilePart(Model):
    """The bytes from `offset` on. `size` is that of the whole file, `sha256` that of this part. Parts of one `version`
    belong together. `name` is the file's own name, for the copy; `whole_sha256` is None for files whose hash is not
    stored."""

    offset: int
    data_base64: str
    size: int
    sha256: str
    version: str
    name: str
    whole_sha256: str | None = None


class Downloads:
    def __init__(self) -> None:
        self._recent: OrderedDict[Download, float] = OrderedDict()

    def needs_audit(self, download: Download, *, anew: bool) -> bool:
        """Whether this part needs an audit row: the first part, or any part of a download not seen before."""
        now = trio.current_time()
        known = self._recent.pop(download, -SECONDS) > now - SECONDS
        self._recent[download] = now
        while len(self._recent) > MOST:
            self._recent.popitem(last=False)
        return anew or not known
