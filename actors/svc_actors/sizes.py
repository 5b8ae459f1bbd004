"""Sizes as people read them: 4 TiB, not 4.1943e+06 MiB."""

from __future__ import annotations

_UNITS = ("MiB", "GiB", "TiB", "PiB")


def memory_text(mib: float) -> str:
    """A size given in MiB as text, in the largest unit of which it has at least one, with at most one decimal."""
    return _text(mib, 0)


def disk_text(gib: float) -> str:
    """A size given in GiB, as `memory_text`."""
    return _text(gib, 1)


def _text(size: float, unit: int) -> str:
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    # Rounded down: free space must not be overstated.
    tenths = int(size * 10)
    return f"{tenths // 10}{f'.{tenths % 10}' if tenths % 10 else ''} {_UNITS[unit]}"
