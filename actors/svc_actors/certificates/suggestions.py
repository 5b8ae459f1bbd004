"""When the authority would have a certificate renewed (ACME Renewal Information, RFC 9773).

An authority moves the window of a certificate when it is going to revoke it, or to spread its load: a client that goes
by the lifetime alone learns of a revocation from its visitors.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from svc_actors.acme import Window
from svc_actors.acme.keys import base64url

ASKED_EVERY: Final = timedelta(hours=6)
"""If the authority does not say. Also after a failure to ask, which is no failure of the certificate."""
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
    # As in the certificate: with a leading zero where the first bit would be a sign.
    serial = leaf.serial_number.to_bytes(leaf.serial_number.bit_length() // 8 + 1, "big")
    return f"{base64url(issuer)}.{base64url(serial)}"


def due_by(window: Window, due_at: datetime, not_after: datetime) -> datetime:
    """When to renew: at a random time of the window, once chosen for good. A window that leaves no certificate in use
    is no advice."""
    if not window.start < window.end <= not_after or window.start <= due_at <= window.end:
        return due_at
    return window.start + (window.end - window.start) * random.random()  # noqa: S311


def pause_before_next(retry_after: float | None) -> timedelta:
    if retry_after is None:
        return ASKED_EVERY
    return min(max(timedelta(seconds=min(retry_after, LONGEST_PAUSE.total_seconds())), SHORTEST_PAUSE), LONGEST_PAUSE)
