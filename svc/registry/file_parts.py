"""Parts of a file as JSON: every answer of the API is JSON."""

from __future__ import annotations

from svc.registry.operation import Model


class FilePart(Model):
    """The bytes from `offset` on. `size` is that of the whole file, `sha256` that of this part. Parts of one `version`
    belong together. `name` is what the file may be called where it is kept; `whole_sha256` is known of some files."""

    offset: int
    data_base64: str
    size: int
    sha256: str
    version: str
    name: str
    whole_sha256: str | None = None
