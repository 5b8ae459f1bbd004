"""Paged lists: the parameters of the query, the page in the answer, and the SQL that reads it.

The cost of a page depends on its own rows, not on the length of the list or the depth of the page: the ids of a page
are found first, by an index if there is one for the requested order, and only the rows of these ids are read. A long
list is not counted but has maintained counts (`svc_actors.store.counts`): of all its rows, of consecutive blocks in its
order, or of groups that share one value. A page is then read from the nearest position whose count is known.

Invariants: rows are sorted by one of the expressions that the list offers, never by the caller's text; ties are broken
by a unique column, so that pages neither repeat nor skip a row that did not change.

Why: docs/decisions/0006-lists-and-search.md.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from svc.registry.operation import Model, Request
from svc.registry.shapes import LINE, Shape
from svc_actors.store import Queryable
from svc_common.errors import wrong_field

T = TypeVar("T")
_NUMBERED = re.compile(r"\$(\d+)")
_NEAR = 1000
"""A page within this many rows of the start is read without counting the list first."""


class PageRequest(Request):
    """`sort` is a field of the list's own, with `-` before it for descending order; `q` is free text."""

    page: Annotated[int, Field(ge=1, le=1_000_000, description="Which page.")] = 1
    page_size: Annotated[int, Field(ge=1, le=200, description="Rows a page, at most 200.")] = 50
    sort: (
        Annotated[
            str,
            Field(max_length=64, description="Sort by this field; -FIELD for descending order."),
            Shape(r"-?[a-z_]+", "the name of a field, with - before it for descending order"),
        ]
        | None
    ) = None
    q: Annotated[str, Field(max_length=200, description="Only what contains this text."), LINE] | None = None


class Page(Model, Generic[T]):
    items: list[T]
    total: int
    page: int
    page_size: int
    pages: int

    @classmethod
    def of(cls, items: list[T], total: int, request: PageRequest) -> Page[T]:
        return cls(
            items=items,
            total=total,
            page=request.page,
            page_size=request.page_size,
            pages=math.ceil(total / request.page_size),
        )


class Condition(NamedTuple):
    """A condition of SQL with its own arguments, numbered from `$1`."""

    sql: str
    args: Sequence[object] = ()


class Nullable(str):
    """An expression that may be NULL: such rows come last, in either direction."""

    __slots__ = ()


Sortable = Mapping[str, str | tuple[str, ...]]
"""The allowed values of `sort`, with the expression or expressions that each stands for."""

EVERYTHING = Condition("true")


class Blocks(NamedTuple):
    """Maintained counts of consecutive blocks in the order `sort`.

    `numbers` is a SELECT of `bound` and `number`, one row for each block, in any order. `number` is how many rows of
    the list have a first sort expression from `bound` up to the next higher bound. No row of the list is below the
    lowest bound."""

    sort: str
    numbers: Condition


class Groups(NamedTuple):
    """Maintained counts of groups of rows. All rows of a group have the same value of the expression of `sort`.

    `numbers` is a SELECT of `value` and `number`, one row for each group, in any order; `of` returns the condition for
    the rows with a value."""

    sort: str
    numbers: Condition
    of: Callable[[str], Condition]


def contains(q: str | None, *columns: str, pieces: str | None = None) -> Condition:
    """True for rows in which a column contains the text `q`, ignoring case; without `q`, for all rows.

    `pieces` is an indexed expression of `text_pieces` over these columns and perhaps others."""
    if not q:
        return EVERYTHING
    found = "(" + " OR ".join(f"{column} ILIKE $1" for column in columns) + ")"
    if pieces is None:
        return Condition(found, (_containing(q),))
    return Condition(f"{pieces} @> wanted_pieces($2) AND {found}", (_containing(q), q))


def has_words(q: str | None, *columns: str, words: str) -> Condition:
    """True for rows in which a column contains the text `q`, and each word of `q` starts a word there; without `q`, for
    all rows. `words` is an indexed expression of `text_words` over these columns. Used for histories, where an index of
    every substring would be larger than the table."""
    if not q:
        return EVERYTHING
    found = "(" + " OR ".join(f"{column} ILIKE $1" for column in columns) + ")"
    return Condition(f"{words} @@ wanted_words($2) AND {found}", (_containing(q), q))


def _containing(q: str) -> str:
    return f"%{literally(q)}%"


def literally(text: str) -> str:
    """The LIKE pattern that matches the text literally."""
    return re.sub(r"([\\%_])", r"\\\1", text)


def equals(column: str, value: object | None) -> Condition:
    """True for rows with this value; for all rows if the value is None (a filter that was not given)."""
    return EVERYTHING if value is None else Condition(f"{column} = $1", (value,))


def joined(conditions: Iterable[tuple[str, Sequence[object]]], *, first: int = 1) -> Condition:
    """All of the conditions combined, their arguments numbered from `$first`."""
    clauses: list[str] = []
    args: list[object] = []
    for sql, own in conditions:
        if sql == EVERYTHING.sql:
            continue
        clauses.append(f"({_shifted(sql, first - 1 + len(args))})")
        args.extend(own)
    return Condition(" AND ".join(clauses) or EVERYTHING.sql, tuple(args))


def _shifted(sql: str, by: int) -> str:
    return _NUMBERED.sub(lambda match: f"${int(match[1]) + by}", sql)


async def paginate(
    queryable: Queryable,
    *,
    select: str,
    source: str,
    where: Iterable[tuple[str, Sequence[object]]],
    sortable: Sortable,
    default_sort: str,
    request: PageRequest,
    tie: str = "id",
    args: Sequence[object] = (),
    known_total: Condition | None = None,
    blocks: Blocks | None = None,
    groups: Groups | None = None,
) -> tuple[list[Any], int]:
    """The rows of the requested page, and the total number of rows.

    `select` is a SELECT without WHERE, and `args` its own arguments; `source` is the part of its FROM that the
    conditions and orders refer to. Each condition numbers its own arguments from `$1`; `tie` is unique in its table.
    `known_total` is a SELECT of the total from a maintained count, if there is one; `blocks` and `groups` are
    maintained counts of parts of the list. Raises `invalid` for a `sort` that is not offered."""
    where = list(where)
    limit, offset = request.page_size, (request.page - 1) * request.page_size
    by, descending = _order(request.sort or default_sort, sortable)
    name = (request.sort or default_sort).removeprefix("-")
    lines = _List(queryable, select, source, where, by, descending, tie, args)
    if groups is not None and name == groups.sort:
        return await _page_of_groups(lines, groups, limit, offset)
    if known_total is not None and offset > _NEAR:
        marks = await _marks(queryable, known_total, blocks if blocks is not None and name == blocks.sort else None)
        total = marks[-1].place
        first, last = min(offset, total), min(offset + limit, total)
        if not descending:
            first, last = total - last, total - first
        return await lines.between(first, last, marks), total
    if request.q and known_total is None:
        return await lines.searched(limit, offset)
    rows = await lines.read(descending, limit, offset)
    if len(rows) < limit and (rows or offset == 0):
        return rows, offset + len(rows)
    if known_total is not None:
        return rows, int(await queryable.fetchval(known_total.sql, *known_total.args))
    condition = joined(where, first=1 + len(args))
    counted = f"SELECT count(*) FROM ({select} WHERE {condition.sql}) AS counted"
    return rows, int(await queryable.fetchval(counted, *args, *condition.args))


class _Mark(NamedTuple):
    """A position from which a list can be read: `place` rows come before it, counted from the highest row down, and the
    sort expression of these rows is at least `bound`. `bound` is None at both ends of the list."""

    place: int
    bound: object | None = None


class _List(NamedTuple):
    """A list in one order, read in parts."""

    queryable: Queryable
    select: str
    source: str
    where: Sequence[tuple[str, Sequence[object]]]
    by: tuple[str, ...]
    descending: bool
    tie: str
    args: Sequence[object]

    async def read(self, downwards: bool, limit: int, offset: int, beyond: Condition = EVERYTHING) -> list[Any]:
        """`limit` rows after the first `offset` rows beyond a mark, read downwards or upwards, and returned in the
        list's own direction."""
        condition = joined([*self.where, beyond], first=1 + len(self.args))
        first = len(self.args) + len(condition.args) + 1
        return await self.queryable.fetch(
            f"""{self.select} WHERE {self.tie} = ANY(ARRAY(
                    SELECT {self.tie} FROM {self.source} WHERE {condition.sql}
                    ORDER BY {self._ordered(downwards)} LIMIT ${first} OFFSET ${first + 1}
                )) ORDER BY {self._ordered(self.descending)}""",
            *self.args,
            *condition.args,
            limit,
            offset,
        )

    async def searched(self, limit: int, offset: int) -> tuple[list[Any], int]:
        """A page of the rows that match a text, and their total: one search gives both."""
        condition = joined(self.where)
        found = await self.queryable.fetch(
            f"""SELECT {self.tie} AS tie, count(*) OVER () AS total FROM {self.source} WHERE {condition.sql}
                ORDER BY {self._ordered(self.descending)} LIMIT {limit} OFFSET {offset}""",
            *condition.args,
        )
        if not found:
            counted = f"SELECT count(*) FROM {self.source} WHERE {condition.sql}"
            return [], int(await self.queryable.fetchval(counted, *condition.args)) if offset else 0
        condition = joined(self.where, first=1 + len(self.args))
        ids = len(self.args) + len(condition.args) + 1
        # The ids were found by these conditions. They are repeated only for their arguments, to which the SELECT may
        # refer.
        rows = await self.queryable.fetch(
            f"""{self.select} WHERE {self.tie} = ANY(${ids}) AND (true OR {condition.sql})
                ORDER BY {self._ordered(self.descending)}""",
            *self.args,
            *condition.args,
            [row["tie"] for row in found],
        )
        return rows, found[0]["total"]

    async def between(self, first: int, last: int, marks: Sequence[_Mark]) -> list[Any]:
        """The rows from place `first` up to `last`, counted downwards, read from the nearest mark."""
        above = marks[bisect_right(marks, first, key=_place) - 1]
        below = marks[bisect_left(marks, last, key=_place)]
        if first - above.place <= below.place - last:
            beyond = EVERYTHING if above.bound is None else Condition(f"{self.by[0]} < $1", (above.bound,))
            return await self.read(True, last - first, first - above.place, beyond)
        beyond = EVERYTHING if below.bound is None else Condition(f"{self.by[0]} >= $1", (below.bound,))
        return await self.read(False, last - first, below.place - last, beyond)

    def _ordered(self, downwards: bool) -> str:
        """The SQL order. NULLs come last in the list's own direction, so first in the other one."""
        nulls = " NULLS LAST" if downwards == self.descending else " NULLS FIRST"
        return ", ".join(
            f"{expression} {'DESC' if downwards else 'ASC'}{nulls if isinstance(expression, Nullable) else ''}"
            for expression in (*self.by, self.tie)
        )


async def _marks(queryable: Queryable, known_total: Condition, blocks: Blocks | None) -> list[_Mark]:
    """Both ends of a list, and the ends of its blocks if these are counted."""
    if blocks is None:
        return [_Mark(0), _Mark(int(await queryable.fetchval(known_total.sql, *known_total.args)))]
    sql, args = blocks.numbers
    rows = await queryable.fetch(
        f"""SELECT bound, sum(sum(number)) OVER (ORDER BY bound DESC)::bigint AS place
            FROM ({sql}) blocks GROUP BY bound HAVING sum(number) <> 0 ORDER BY bound DESC""",
        *args,
    )
    return [_Mark(0), *(_Mark(row["place"], row["bound"]) for row in rows)]


def _place(mark: _Mark) -> int:
    return mark.place


async def _page_of_groups(lines: _List, groups: Groups, limit: int, offset: int) -> tuple[list[Any], int]:
    """A page in an order with few different values. Whole groups are skipped by their counts; within a group the rows
    are in the order of `tie`, which has an index and needs no sorting."""
    sql, args = groups.numbers
    counted = await lines.queryable.fetch(
        f"SELECT value, sum(number)::bigint AS number FROM ({sql}) groups GROUP BY value HAVING sum(number) > 0", *args
    )
    rows: list[Any] = []
    total = 0
    for value, number in sorted(((row["value"], row["number"]) for row in counted), reverse=lines.descending):
        first, last = max(offset - total, 0), min(offset + limit - total, number)
        total += number
        if first < last:
            group = lines._replace(where=[*lines.where, groups.of(value)], by=())
            if not lines.descending:
                first, last = number - last, number - first
            rows += await group.between(first, last, [_Mark(0), _Mark(number)])
    return rows, total


def _order(sort: str, sortable: Sortable) -> tuple[tuple[str, ...], bool]:
    """The expressions to sort by, and whether in descending order."""
    name, descending = (sort[1:], True) if sort.startswith("-") else (sort, False)
    if name not in sortable:
        problem = f"this list is sorted by one of {', '.join(sorted(sortable))}, with - before it for descending order"
        raise wrong_field("sort", problem)
    by = sortable[name]
    return (by,) if isinstance(by, str) else by, descending
