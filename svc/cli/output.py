"""Results to stdout as a table, JSON or YAML; messages to stderr. NO_COLOR is honoured.

JSON and YAML hold the API's answer, unchanged. A table is for reading: sizes with units, times as ages, domain names in
their own letters, and the columns that people look at; `--columns` chooses others, with dots to reach inside, and
leaves names as the API has them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncclick as click

from svc.cli.idn import in_letters
from svc.cli.terminal import say, visible, write, write_json, write_yaml

if TYPE_CHECKING:
    from rich.table import Table


# The default columns of a list are declared with its operation and fit a terminal of 100 characters: names if commands
# take names, ids if there is nothing else to show (`--columns id,...` always has them).
class Column(NamedTuple):
    """`path` reaches into a row by dots; a `whole` column is not wrapped."""

    title: str
    path: str
    whole: bool = False


def columns(paths: Iterable[str]) -> tuple[Column, ...]:
    """Columns by their paths, or `title=path`. Ids are not wrapped, since people copy them."""
    parts = [text.partition("=") for text in paths]
    return tuple(Column(title, path or title, whole=(path or title) == "id") for title, _, path in parts)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class Style:
    format: Format = Format.TABLE
    columns: tuple[str, ...] = ()
    header: bool = True

    @property
    def for_reading(self) -> bool:
        """Whether the result is shown as a table, and the user has not chosen its columns."""
        return self.format is Format.TABLE and not self.columns


_HOST = re.compile(r"(?:\*\.)?(?:[a-z0-9-]+\.)+[a-z0-9-]+")
_GAP = 2
"""Spaces between two columns."""
_LONG = 5
"""The most rows that a field of one result shows in its cell."""
_FOLDED = 16
"""The least width in characters at which wrapped text is still easy to read."""


def show(result: Any, style: Style, *, columns: Sequence[Column] = ()) -> None:
    """Print one result. `columns` are the list's default columns, used if the user named none."""
    if result is None or result == {}:
        return
    if style.format is Format.JSON:
        write_json(result, indent=2)
    elif style.format is Format.YAML:
        write_yaml(result)
    elif isinstance(result, str):
        write(result.rstrip("\n"))
    else:
        _show_table(result, style, tuple(columns))


def is_page(result: Any) -> bool:
    return isinstance(result, Mapping) and "items" in result and "total" in result


def _show_table(result: Any, style: Style, columns: tuple[Column, ...]) -> None:
    rows = result["items"] if is_page(result) else result
    if isinstance(rows, Mapping) and isinstance(rows.get("points"), list):
        rows = rows["points"]
    if isinstance(rows, Mapping):
        _show_fields(rows, style)
        return
    if rows and not isinstance(rows[0], Mapping):
        write("\n".join(str(row) for row in rows))
        return
    chosen = tuple(Column(name, name) for name in style.columns) or _present(columns, rows) or _plain(rows)
    if style.columns and rows:
        _refuse_unknown(style.columns, rows[0])
    cells = [[_cell(column.path, _pick(row, column.path)) for column in chosen] for row in rows]
    if not style.columns:
        cells = [[_with_letters(cell, "{letters}") for cell in line] for line in cells]
    fitting = len(chosen) if style.columns else _fitting(chosen, cells)
    table = _table(header=style.header)
    for column in chosen[:fitting]:
        table.add_column(column.title, overflow="fold", no_wrap=column.whole, justify="left")
    for line in cells:
        table.add_row(*line[:fitting])
    if rows:
        _print(table)
    elif sys.stdout.isatty():
        say("none", style="dim")
    if fitting < len(chosen):
        left_out = ", ".join(column.title for column in chosen[fitting:])
        say(f"the terminal is too narrow for: {left_out}; --columns and -o json show everything", style="dim")
    if is_page(result) and result["pages"] > 1:
        say(f"page {result['page']} of {result['pages']}, {result['total']} in all; --page N for another", style="dim")


def _fitting(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """How many columns fit into the terminal, counted from the left. The others are left out: columns wrapped to a few
    characters would be unreadable."""
    if not sys.stdout.isatty():
        return len(columns)
    from rich.cells import cell_len
    from rich.console import Console

    left = Console().width + _GAP
    for number, column in enumerate(columns):
        texts = [column.title, *(row[number] for row in cells)]
        longest = max(cell_len(line) for text in texts for line in text.split("\n"))
        left -= _GAP + (longest if column.whole else min(longest, _FOLDED))
        if left < 0:
            return max(number, 1)
    return len(columns)


def _show_fields(row: Mapping[str, Any], style: Style) -> None:
    if style.columns:
        _refuse_unknown(style.columns, row)
    named = [(name, _pick(row, name)) for name in style.columns] or list(_flat(row))
    table = _table(header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    tables = {} if style.columns else {name: value for name, value in named if _is_long_list(value)}
    for name, value in named:
        if name in tables:
            continue
        text = _cell(name, value)
        if not style.columns:
            text = _with_letters(text, "{letters} ({name})")
        if _is_time(name, value):
            text = f"{str(value)[:19].replace('T', ' ')} UTC ({text})"
        if style.header or style.columns:
            table.add_row(name, text)
    _print(table)
    for name, rows in tables.items():
        write(f"\n{name}")
        _show_table(rows, style, ())


def _is_long_list(value: Any) -> bool:
    """Whether a field is a list that is easier to read as a table below the fields: the plan of an import."""
    return isinstance(value, list) and len(value) > _LONG and all(isinstance(row, Mapping) for row in value)


def _table(*, header: bool) -> Table:
    from rich.table import Table

    return Table(box=None, show_header=header, header_style="bold", pad_edge=False)


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # For a pipe, a column is as wide as its longest value, so that each row is one line; lines have no trailing
        # spaces.
        wide = Console(highlight=False, markup=False, emoji=False, width=100_000)
        with wide.capture() as captured:
            wide.print(table)
        write("\n".join(line.rstrip() for line in captured.get().splitlines()))
        return
    console.print(table)


def _flat(row: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """The fields of a row with their values; nested fields by their dotted names."""
    fields: list[tuple[str, Any]] = []
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            fields.extend(_flat(value, f"{before}{name}."))
        else:
            fields.append((before + name, value))
    return fields


def _present(columns: tuple[Column, ...], rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple(column for column in columns if not rows or _pick(rows[0], column.path) is not _ABSENT)


def _plain(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    if not rows:
        return (Column("id", "id"),)
    return tuple(Column(name, name) for name, value in rows[0].items() if not isinstance(value, dict | list))


_ABSENT = object()


def _refuse_unknown(columns: tuple[str, ...], row: Mapping[str, Any]) -> None:
    unknown = [column for column in columns if _pick(row, column) is _ABSENT]
    if unknown:
        raise click.UsageError(
            f"there is no column {', '.join(unknown)}; the columns are {', '.join(name for name, _ in _flat(row))}"
        )


def _pick(row: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted path. `_ABSENT` if the row lacks a part of the path; None if a value on the way is null
    (the capacity of a node that has not reported yet)."""
    value: Any = row
    for part in dotted.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _with_letters(cell: str, form: str) -> str:
    """The cell with domain names in their own letters, if it holds names and nothing else."""
    if "xn--" not in cell:
        return cell
    names = cell.split(", ")
    return ", ".join(spelled(name, form) for name in names) if all(map(_HOST.fullmatch, names)) else cell


def spelled(name: str, form: str = "{letters} ({name})") -> str:
    """A domain name by `form`, if it has letters of its own that the terminal can show; else the name."""
    letters = in_letters(name)
    if letters == name:
        return name
    try:
        letters.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeError, LookupError):
        return name
    return form.format(letters=letters, name=name)


def _is_time(name: str, value: Any) -> bool:
    last = name.rpartition(".")[2]
    return isinstance(value, str) and (last in {"at", "hour"} or last.endswith("_at")) and value[10:11] == "T"


def _cell(name: str, value: Any) -> str:
    if value is None or value is _ABSENT:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_time(name, value):
        return ago(value)
    if isinstance(value, int | float):
        return _number(name.rpartition(".")[2], value)
    if isinstance(value, list):
        separator = "\n" if any(isinstance(item, Mapping) for item in value) else ", "
        return separator.join(_cell(name, item) for item in value)
    if isinstance(value, Mapping):
        kept = {key: _cell(key, item) for key, item in value.items() if item not in (None, [], {})}
        return ", ".join(text if key in _SPEAKS_FOR_ITSELF else f"{key} {text}" for key, text in kept.items())
    return visible(str(value))


_SPEAKS_FOR_ITSELF = {"name", "status", "state", "message", "ip"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_mib"):
        return size(value * 2**20)
    if name.endswith("_gib"):
        return size(value * 2**30)
    if name in ("progress", "percent"):
        return f"{value:g}%"
    if name == "pressure":
        return f"{value * 100:.0f}%"
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    digits = f"{count:.1f}".removesuffix(".0")
    return f"{digits} {_UNITS[unit]}"


_SPANS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(moment: str) -> str:
    """`5 min ago`, `in 3 d`: one unit, rounded down."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return moment
    for length, unit in _SPANS:
        if abs(seconds) >= length:
            count = int(abs(seconds) // length)
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"
    return "now"
