"""Passwords of database accounts, and their stored forms, which can verify a password but not reveal it.

With the stored form an account can be created again with the password that its user knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

_ITERATIONS = 4096
"""PostgreSQL's default. These passwords are random, so more iterations would not make them harder to guess."""


def new_password() -> str:
    """144 random bits in characters that need no quotes in any configuration file."""
    return secrets.token_urlsafe(18).replace("-", "A").replace("_", "B")


def native_hash(password: str) -> str:
    """MariaDB's `mysql_native_password`, which every client supports."""
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(once, usedforsecurity=False).hexdigest().upper()


def scram_verifier(password: str) -> str:
    """PostgreSQL's SCRAM-SHA-256 (RFC 5803); the password is ASCII, so there is nothing to normalise."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored_text, server_text = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt_text}${stored_text}:{server_text}"
