"""The headers that bind a browser, of every answer and of every page."""

from __future__ import annotations

from typing import Final

Header = tuple[bytes, bytes]

# Each header costs a read a percent of its time: those that matter to pages alone are not sent with data.
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
    # A day, as it is for the host with all its ports, those of other programs too; a browser takes it only from a
    # certificate that it trusts (RFC 6797, 8.1).
    (b"strict-transport-security", b"max-age=86400"),
)
PAGE_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
"""The Content-Security-Policy of a page of ours: it loads what is served beside it, and nothing else."""
