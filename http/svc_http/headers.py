"""The headers that restrict a browser, for every answer and for every page.

Why: docs/decisions/0004-browsers-and-origins.md.
"""

from __future__ import annotations

from typing import Final

Header = tuple[bytes, bytes]

# Each header adds a percent to the time of a read, so headers that matter only to pages are not sent with data.
OF_ANSWERS: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
OF_PAGES: Final[tuple[Header, ...]] = (
    *OF_ANSWERS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Only a day, because it applies to the host with all its ports, including those of other programs. Browsers accept
    # it only with a certificate that they trust (RFC 6797, 8.1).
    (b"strict-transport-security", b"max-age=86400"),
)
PAGE_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
"""The Content-Security-Policy of our pages: they load only files that this server serves with them."""
