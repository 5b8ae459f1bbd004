"""The secrets that people and programs carry: 32 random bytes each, known to the service by their SHA-256 alone."""

from __future__ import annotations

import hashlib
import secrets

SETUP_TOKEN_PREFIX = "svcsetup_"  # noqa: S105 - the public start of a token


def new_secret(prefix: str = "") -> str:
    """None begins with a dash, which a command line would take for an option."""
    while (drawn := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return prefix + drawn


def fingerprint(secret: str) -> bytes:
    """What is stored of a secret. A secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode()).digest()
