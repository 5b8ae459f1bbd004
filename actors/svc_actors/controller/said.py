"""Names that a host has said: taken over where a person could have given them, and replaced where not."""

from __future__ import annotations

from typing import Final

_MOST: Final = 200


def said_name(said: str, otherwise: str) -> str:
    """One line that is not blank and reads as it is written: no control characters, none that turn the direction."""
    return said if said.strip() and said.isprintable() and len(said) <= _MOST else otherwise
