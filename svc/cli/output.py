"""Results to stdout as a table, JSON or YAML; messages and progress to stderr. NO_COLOR is honoured by rich."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncclick as click
import yaml
from rich.console import Console
from rich.table import Table

MESSAGES = Console(stderr=True, highlight=False)
"""Where a person is told what happens; never mixed with a result."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class Style:
    format: Format = Format.TABLE
    columns: tuple[str, ...] = ()
    header: bool = True


def show(result: Any, style: Style, *, columns: Sequence[str] = ()) -> None:
    """Print one result. `columns` are the everyday ones of this list, where the person named none."""
    if result is None:
        return
    if style.format is Format.JSON:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    elif style.format is Format.YAML:
        click.echo(yaml.safe_dump(result, sort_keys=False, allow_unicode=True).rstrip())
    elif isinstance(result, str):
        click.echo(result)
    else:
        _show_table(result, style, tuple(columns))


def _show_table(result: Any, style: Style, columns: tuple[str, ...]) -> None:
    rows = result["items"] if isinstance(result, Mapping) and "items" in result and "total" in result else result
    if isinstance(rows, Mapping):
        _show_fields(rows, style)
        return
    chosen = style.columns or _known(columns, rows) or _plain_columns(rows)
    table = Table(box=None, show_header=style.header, header_style="bold", pad_edge=False)
    for column in chosen:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_text(_pick(row, column)) for column in chosen))
    _print(table)
    if rows is not result and result["pages"] > 1:
        MESSAGES.print(f"page {result['page']} of {result['pages']}, {result['total']} in all", style="dim")


def _show_fields(row: Mapping[str, Any], style: Style) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name in style.columns or tuple(row):
        table.add_row(name, _text(_pick(row, name)))
    _print(table)


def _print(table: Table) -> None:
    console = Console(highlight=False)
    # Into a pipe, a column is as wide as its longest value: a line is a row there.
    console.print(table) if console.is_terminal else Console(highlight=False, width=100_000, soft_wrap=True).print(
        table
    )


def _known(columns: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(column for column in columns if not rows or _pick(rows[0], column) is not _ABSENT)


def _plain_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(name for name, value in rows[0].items() if not isinstance(value, dict | list)) if rows else ("id",)


_ABSENT = object()


def _pick(row: Mapping[str, Any], dotted: str) -> Any:
    value: Any = row
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _text(value: Any) -> str:
    if value is None or value is _ABSENT:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(item)}" for name, item in value.items() if item not in (None, [], {}))
    return str(value).replace("\x1b", "")
