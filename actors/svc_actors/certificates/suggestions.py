"""When the authority suggests renewing a certificate (ACME Renewal Information, RFC 9773).

An authority moves the window of a certificate before it revokes the certificate, or to spread its load. A client that
considers only the lifetime would learn of a revocation from its visitors.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from svc_actors.acme import Window
from svc_actors.acme.keys import base64url

ASKED_EVERY: Final = timedelta(hours=6)
"""The interval between queries if the authority names none, and after a query that failed."""
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(minutes=10), timedelta(days=1)


def certificate_id(chain: str) -> str | None:
    """The name of the leaf for this purpose (section 4.1): its issuer's key id and its serial number. None for a leaf
    that does not name the key of its issuer."""
    leaf = x509.load_pem_x509_certificate(chain.encode())
    try:
        issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        return None
    if issuer is None:
        return None
    # Encoded as in the certificate: with a leading zero byte if the first bit would otherwise be a sign.
    serial = leaf.serial_number.to_bytes(leaf.serial_number.bit_length() // 8 + 1, "big")
    return f"{base64url(issuer)}.{base64url(serial)}"


def due_by(window: Window, due_at: datetime, not_after: datetime) -> datetime:
    """When to renew: at a random time within the window. A time within the window that was chosen earlier is kept. A
    window that is empty, or ends after the certificate expires, is ignored."""
    if not window.start < window.end <= not_after or window.start <= due_at <= window.end:
        return due_at
    return window.start + (window.end - window.start) * random.random()  # noqa: S311


def pause_before_next(retry_after: float | None) -> timedelta:
    if retry_after is None:
        return ASKED_EVERY
    return min(max(timedelta(seconds=min(retry_after, LONGEST_PAUSE.total_seconds())), SHORTEST_PAUSE), LONGEST_PAUSE)
