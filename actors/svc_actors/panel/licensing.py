"""The licence of a panel: a document signed by its issuer, and verified here, offline.

The file is one line, `<document>.<signature>`, both in base64url without padding: the document is JSON (`License`), the
signature Ed25519 over `SIGNED_AS` and its bytes. The issuer's public key comes from the panel's configuration.

The licence is verified each time that it is shown, and nothing else reads it: no operation, job or loop depends on it,
so an expired or unverified licence stops nothing.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from svc_actors.store import Queryable, Transaction

SIGNED_AS: Final = b"svc-panel-license-v1\n"
"""Prefix of the signed bytes, so that a signature made for anything else is not valid for a licence."""


class LicenseState(StrEnum):
    NONE = "none"
    VALID = "valid"
    EXPIRED = "expired"
    INVALID = "invalid"
    """The licence was valid when it was installed; since then the configured key or the installation's id has
    changed."""


class LicenseError(Exception):
    """Why a file is not a licence of this panel."""


class License(BaseModel):
    """What the issuer has signed. Members that a later issuer adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Annotated[str, Field(min_length=1, max_length=100)]
    holder: Annotated[str, Field(min_length=1, max_length=200)]
    edition: Annotated[str, Field(min_length=1, max_length=50)]
    install_id: UUID
    issued_at: AwareDatetime
    expires_at: AwareDatetime | None = None


@dataclass(frozen=True)
class StoredLicense:
    file: str
    installed_at: datetime


@dataclass(frozen=True)
class LicenseVerdict:
    """The result of a verification. `license` is None if there is no licence or it is not verified; `problem` says why
    it is not."""

    state: LicenseState
    license: License | None = None
    problem: str | None = None


def verified(file: str, key: Ed25519PublicKey | None, install_id: UUID) -> License:
    """Returns the document of a file. Raises `LicenseError` unless the issuer has signed it for this panel."""
    if key is None:
        raise LicenseError("no key to verify licences with is configured")
    document, _, signature = file.partition(".")
    try:
        content = _decoded(document)
        key.verify(_decoded(signature), SIGNED_AS + content)
    except (ValueError, InvalidSignature) as error:
        raise LicenseError("the configured key did not sign it") from error
    try:
        license = License.model_validate_json(content)
    except ValidationError as error:
        raise LicenseError("it is signed, but not a licence that this release knows") from error
    if license.install_id != install_id:
        raise LicenseError(f"it is for the panel with the install id {license.install_id}")
    return license


def judged(
    installed: StoredLicense | None, key: Ed25519PublicKey | None, install_id: UUID, now: datetime
) -> LicenseVerdict:
    if installed is None:
        return LicenseVerdict(LicenseState.NONE)
    try:
        license = verified(installed.file, key, install_id)
    except LicenseError as error:
        return LicenseVerdict(LicenseState.INVALID, problem=f"The licence is not in effect: {error}.")
    over = license.expires_at is not None and license.expires_at <= now
    return LicenseVerdict(LicenseState.EXPIRED if over else LicenseState.VALID, license)


async def read_license(queryable: Queryable) -> StoredLicense | None:
    row = await queryable.fetchrow("SELECT file, installed_at FROM panel_license")
    return StoredLicense(row["file"], row["installed_at"]) if row is not None else None


async def write_license(tx: Transaction, file: str) -> None:
    """Replaces the current licence."""
    await tx.execute(
        """INSERT INTO panel_license (file) VALUES ($1)
           ON CONFLICT (one) DO UPDATE SET file = EXCLUDED.file, installed_at = now()""",
        file,
    )


async def delete_license(tx: Transaction) -> bool:
    """Returns whether there was one."""
    return await tx.fetchval("DELETE FROM panel_license RETURNING true") is not None


def _decoded(text: str) -> bytes:
    """Raises ValueError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("no base64url") from error
