"""The columns of a table. What a list shows first is declared with its operation and fits a terminal of a hundred
columns: names stand where commands take names, ids where there is nothing else to say (`--columns id,...` has them
everywhere)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Column(NamedTuple):
    """`path` reaches into a row by dots; a `whole` column is not folded."""

    title: str
    path: str
    whole: bool = False


def columns(paths: Iterable[str]) -> tuple[Column, ...]:
    """Columns by their paths, or `title=path`. Ids are kept whole, since they are copied."""
    parts = [text.partition("=") for text in paths]
    return tuple(Column(title, path or title, whole=(path or title) == "id") for title, _, path in parts)
