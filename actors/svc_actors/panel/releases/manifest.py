"""The signed manifest of a release.

The file `svc-panel.release` is one line, `<manifest>.<signature>`, both in base64url without padding: the manifest is
JSON (`Manifest`), the signature Ed25519 over `SIGNED_AS` and its bytes. It is verified with the keys in the running
release (`release-keys.pem`), any of which may have signed: to rotate a key, one release contains both keys, and the
next one only the new key. The manifest contains the SHA-256 of the archive, so the signature covers the archive, too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

SIGNED_AS: Final = b"svc-panel-release-v1\n"
"""Prefix of the signed bytes, so that a signature made for anything else is not valid for a release."""
FILE: Final = "svc-panel.release"
KEYS_FILE: Final = "release-keys.pem"
MOST_BYTES: Final = 2 << 30
"""The most bytes of an archive, packed or unpacked."""
_KEY: Final = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)

Version = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$", max_length=32)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=100)]


class ReleaseError(Exception):
    """Why the panel does not accept a release; nothing was changed."""


class Archive(BaseModel):
    """A tar file, compressed with gzip. `unpacked` is the sum of its files' bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: FileName
    size: Annotated[int, Field(gt=0, le=MOST_BYTES)]
    sha256: Digest
    unpacked: Annotated[int, Field(gt=0, le=MOST_BYTES)]


class Manifest(BaseModel):
    """`follows` is the oldest release that this one may replace; `package` is the oldest Debian package that it needs,
    which provides units and dependencies. Members that a later maker adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    product: Literal["svc-panel"]
    version: Version
    architecture: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{2,20}$")]
    made_at: AwareDatetime
    follows: Version
    package: Version
    archive: Archive


def age(version: str) -> tuple[int, ...]:
    """Sort key of versions."""
    return tuple(map(int, version.split(".")))


def signed(manifest: Manifest, key: Ed25519PrivateKey) -> str:
    content = manifest.model_dump_json().encode()
    return f"{_encoded(content)}.{_encoded(key.sign(SIGNED_AS + content))}\n"


def verified(line: str, keys: Iterable[Ed25519PublicKey]) -> Manifest:
    """The manifest of the line. Raises `ReleaseError` unless one of the keys has signed it."""
    document, _, signature = line.strip().partition(".")
    try:
        content, sign = _decoded(document), _decoded(signature)
    except ValueError as error:
        raise ReleaseError(f"{FILE} is not a signed manifest") from error
    if not any(_has_signed(key, sign, content) for key in keys):
        raise ReleaseError(f"{FILE} is not signed by a key that this release trusts")
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ReleaseError(f"{FILE} is signed, but of a kind that this release does not know") from error


def keys_in(pem: str) -> tuple[Ed25519PublicKey, ...]:
    """Raises ValueError if a key is not an Ed25519 key."""
    found = []
    for text in _KEY.findall(pem):
        key = load_pem_public_key(text.encode())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("not a key of Ed25519")
        found.append(key)
    return tuple(found)


def keys_of(release: Path) -> tuple[Ed25519PublicKey, ...]:
    """The keys that a release trusts; a build without keys trusts nobody."""
    try:
        return keys_in((release / KEYS_FILE).read_text())
    except FileNotFoundError:
        return ()


def _has_signed(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, SIGNED_AS + content)
    except InvalidSignature:
        return False
    return True


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Raises ValueError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("no base64url") from error
