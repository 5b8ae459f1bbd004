"""The columns of a table. The default columns of a list are declared with its operation and fit a terminal of 100
characters: names if commands take names, ids if there is nothing else to show (`--columns id,...` always has them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Column(NamedTuple):
    """`path` reaches into a row by dots; a `whole` column is not wrapped."""

    title: str
    path: str
    whole: bool = False


def columns(paths: Iterable[str]) -> tuple[Column, ...]:
    """Columns by their paths, or `title=path`. Ids are not wrapped, since people copy them."""
    parts = [text.partition("=") for text in paths]
    return tuple(Column(title, path or title, whole=(path or title) == "id") for title, _, path in parts)
