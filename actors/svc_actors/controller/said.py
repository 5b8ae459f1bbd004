"""Names reported by a host: used if a person could have chosen them, replaced otherwise."""

from __future__ import annotations

from typing import Final

_MOST: Final = 200


def safe_name(said: str, otherwise: str) -> str:
    """`said` if it is one non-blank line of at most `_MOST` characters, without control characters or characters that
    change the text's direction; else `otherwise`."""
    return said if said.strip() and said.isprintable() and len(said) <= _MOST else otherwise
