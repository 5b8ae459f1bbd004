"""Paged lists: the query's parameters, the page that answers, and the SQL between them.

A page costs what its own rows cost, however long the list and however deep the page: the ids of a page are found first,
in an index where there is one of the order that is asked for, and only their rows are read; a page in the second half
is looked for from the end; and a long list brings a number that is kept (`svc_actors.store.counts`), not a count.

Invariants: what is sorted by is one of the expressions the list offers, never the caller's text; ties are broken by
a unique column, so that pages neither repeat nor skip a row that did not change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from svc.registry.operation import Model, Request
from svc_actors.errors import wrong_field
from svc_actors.store import Queryable

T = TypeVar("T")
_NUMBERED = re.compile(r"\$(\d+)")
_NEAR = 1000
"""Rows that are skipped sooner than it is asked how many there are."""


class PageRequest(Request):
    """`sort` is a field of the list's own, with `-` before it for descending order; `q` is free text."""

    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Field(ge=1, le=200)] = 50
    sort: Annotated[str, Field(max_length=64)] | None = None
    q: Annotated[str, Field(max_length=200)] | None = None


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
    """An expression that may be NULL: such rows come last, whichever way the list is sorted."""

    __slots__ = ()


Sortable = Mapping[str, str | tuple[str, ...]]
"""The names that `sort` may have, with the expression or expressions that each stands for."""

EVERYTHING = Condition("true")


def contains(q: str | None, *columns: str, pieces: str | None = None) -> Condition:
    """True where one of the columns contains the text `q`, without regard to case; true everywhere without `q`.

    `pieces` is an indexed expression of `text_pieces` over these columns and perhaps others."""
    if not q:
        return EVERYTHING
    found = "(" + " OR ".join(f"{column} ILIKE $1" for column in columns) + ")"
    if pieces is None:
        return Condition(found, (_containing(q),))
    return Condition(f"{pieces} @> wanted_pieces($2) AND {found}", (_containing(q), q))


def has_words(q: str | None, *columns: str, words: str) -> Condition:
    """True where one of the columns contains the text `q`, and each word of `q` begins a word there; true everywhere
    without `q`. `words` is an indexed expression of `text_words` over these columns: for histories, where an index of
    every piece of text would be larger than they are."""
    if not q:
        return EVERYTHING
    found = "(" + " OR ".join(f"{column} ILIKE $1" for column in columns) + ")"
    return Condition(f"{words} @@ wanted_words($2) AND {found}", (_containing(q), q))


def _containing(q: str) -> str:
    return f"%{literally(q)}%"


def literally(text: str) -> str:
    """The pattern of LIKE that stands for the text itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)


def equals(column: str, value: object | None) -> Condition:
    """True where the column has the value; true everywhere when the value is None (a filter not given)."""
    return EVERYTHING if value is None else Condition(f"{column} = $1", (value,))


def joined(conditions: Iterable[tuple[str, Sequence[object]]], *, first: int = 1) -> Condition:
    """All of the conditions as one, its arguments numbered from `$first`."""
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
    kept: Condition | None = None,
) -> tuple[list[Any], int]:
    """The rows of the page asked for, and how many there are on all pages.

    `select` is a SELECT without WHERE, and `args` its arguments; `source` is what of its FROM the conditions and orders
    speak of. Each condition numbers its own arguments from `$1`; `tie` is unique in its table. `kept` is a SELECT of
    the number of rows where that is known without counting. Raises `invalid` for a `sort` that is not offered.
    """
    condition = joined(where, first=1 + len(args))
    given = (*args, *condition.args)
    limit, offset = request.page_size, (request.page - 1) * request.page_size
    by, descending = _order(request.sort or default_sort, sortable)

    def ordered(downwards: bool) -> str:
        nulls = " NULLS LAST" if downwards == descending else " NULLS FIRST"
        return ", ".join(
            f"{expression} {'DESC' if downwards else 'ASC'}{nulls if isinstance(expression, Nullable) else ''}"
            for expression in (*by, tie)
        )

    async def page(downwards: bool, limit: int, offset: int) -> list[Any]:
        first = len(given) + 1
        return await queryable.fetch(
            f"""{select} WHERE {tie} = ANY(ARRAY(
                    SELECT {tie} FROM {source} WHERE {condition.sql} ORDER BY {ordered(downwards)}
                    LIMIT ${first} OFFSET ${first + 1}
                )) ORDER BY {ordered(descending)}""",
            *given,
            limit,
            offset,
        )

    if kept is not None and offset > _NEAR:
        total = int(await queryable.fetchval(kept.sql, *kept.args))
        if offset >= total / 2:
            # From the end: the page is the same, and what is skipped is what comes after it.
            return await page(not descending, max(0, min(limit, total - offset)), max(0, total - offset - limit)), total
        return await page(descending, limit, offset), total
    rows = await page(descending, limit, offset)
    if len(rows) < limit and (rows or offset == 0):
        return rows, offset + len(rows)
    if kept is not None:
        return rows, int(await queryable.fetchval(kept.sql, *kept.args))
    counted = f"SELECT count(*) FROM ({select} WHERE {condition.sql}) AS counted"
    return rows, int(await queryable.fetchval(counted, *given))


def _order(sort: str, sortable: Sortable) -> tuple[tuple[str, ...], bool]:
    """The expressions to sort by, and whether downwards."""
    name, descending = (sort[1:], True) if sort.startswith("-") else (sort, False)
    if name not in sortable:
        problem = f"this list is sorted by one of {', '.join(sorted(sortable))}, with - before it for descending order"
        raise wrong_field("sort", problem)
    by = sortable[name]
    return (by,) if isinstance(by, str) else by, descending
