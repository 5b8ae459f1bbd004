"""Secrets that people and programs hold: 32 random bytes each, of which the service stores only the SHA-256."""

from __future__ import annotations

import hashlib
import secrets

SETUP_TOKEN_PREFIX = "svcsetup_"  # noqa: S105 - the public start of a token


def new_secret(prefix: str = "") -> str:
    """A new secret. It never starts with a dash, which a command line would take for an option."""
    while (drawn := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return prefix + drawn


def fingerprint(secret: str) -> bytes:
    """The stored form of a secret. A secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode()).digest()
