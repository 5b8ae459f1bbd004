"""The manifest: everything that the panel knows, in one encrypted file that later releases can read, too.

    a line of JSON    the format, and the data key as the recovery key opens it
    the rest          sealed under the data key, with that line bound to it:
                      eight bytes of length, a JSON document (`Manifest`), the dump of the database

Invariant: a file that was truncated, altered or combined from two does not open.

Rejected: a description of the sites instead of a dump. A dump of the database is complete, and a later release reads it
with the migrations that it has anyway.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from svc_actors.panel.recovery.key import WrappedKey, WrongKey
from svc_actors.sealing import CannotUnseal, Sealer

FORMAT: Final = 1
_LENGTH: Final = 8
# A header has some 220 bytes. The file may come from anybody, so only this much of it is searched for the end of the
# line.
_LONGEST_HEADER: Final = 4096


class DamagedManifest(Exception):  # noqa: N818 - named for what it says
    """This is not a manifest, or not a complete one; the message says why."""


class ManifestSite(BaseModel):
    """`repository` is None for a site that was never backed up; `backup` is its newest backup, made at `backup_at`."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    id: UUID
    domain: str
    type: str
    owner: str
    repository: UUID | None
    repository_key: str | None
    backup: UUID | None
    backup_at: datetime | None


class Manifest(BaseModel):
    """Later releases may add fields; `format` changes only where an older release would misread the manifest.
    `target_id`: the target to which it was written, by the id that its server uses."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    format: int = FORMAT
    release: str
    install_id: UUID
    target_id: UUID
    hostname: str
    data_dir: str
    taken_at: datetime
    migrations: dict[str, int]
    addresses: tuple[IPv4Address | IPv6Address, ...]
    sealing_key: str
    sites: tuple[ManifestSite, ...]
    dump_bytes: int
    dump_sha256: str


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    svc_recovery: int
    key: WrappedKey


def sealed_manifest(manifest: Manifest, dump: bytes, data_key: bytes, wrapped: WrappedKey) -> bytes:
    # The header is the seal's purpose: if somebody puts another wrapped key in front of the sealed rest, the rest no
    # longer opens.
    header = json.dumps({"svc_recovery": FORMAT, "key": wrapped.model_dump()})
    document = manifest.model_dump_json().encode()
    content = len(document).to_bytes(_LENGTH, "big") + document + dump
    return header.encode() + b"\n" + Sealer(data_key).seal(content, header)


def opened_manifest(data: bytes, recovery_key: str) -> tuple[Manifest, bytes]:
    """The manifest and the dump. Raises `DamagedManifest` and `WrongKey`."""
    line, found, sealed = data[:_LONGEST_HEADER].partition(b"\n")
    sealed = data[len(line) + 1 :]
    try:
        header = _Header.model_validate_json(line)
    except ValidationError as error:
        raise DamagedManifest("This is not the manifest of a server.") from error
    if not found or header.svc_recovery != FORMAT:
        raise DamagedManifest(
            f"The manifest has the format {header.svc_recovery}, and this release reads {FORMAT}: "
            "recover with the release that wrote it, or a later one."
        )
    # The key is checked first, so that a mistyped key is not reported as damage.
    data_key = header.key.opened(recovery_key)
    try:
        content = Sealer(data_key).unseal(sealed, line.decode())
    except (CannotUnseal, ValueError) as error:
        raise DamagedManifest("The manifest was altered, or cut short. Choose an earlier one.") from error
    length = int.from_bytes(content[:_LENGTH], "big")
    try:
        manifest = Manifest.model_validate_json(content[_LENGTH : _LENGTH + length])
    except ValidationError as error:
        raise DamagedManifest("The manifest has contents that this release does not understand.") from error
    dump = content[_LENGTH + length :]
    # The seal proves only that nobody has changed the content since it was sealed. This check finds a dump that did not
    # match then.
    if (len(dump), hashlib.sha256(dump).hexdigest()) != (manifest.dump_bytes, manifest.dump_sha256):
        raise DamagedManifest("The database in the manifest is not what the manifest says.")
    return manifest, dump


__all__ = [
    "FORMAT",
    "DamagedManifest",
    "Manifest",
    "ManifestSite",
    "WrongKey",
    "opened_manifest",
    "sealed_manifest",
]
