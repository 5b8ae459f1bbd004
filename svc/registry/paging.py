"""Paged lists: the query's parameters, the page that answers, and the SQL between them.

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


EVERYTHING = Condition("true")


def contains(q: str | None, *columns: str) -> Condition:
    """True where one of the columns contains the text `q`, without regard to case; true everywhere without `q`."""
    if not q:
        return EVERYTHING
    return Condition("(" + " OR ".join(f"{column} ILIKE $1" for column in columns) + ")", (f"%{literally(q)}%",))


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
    where: Iterable[tuple[str, Sequence[object]]],
    sortable: Mapping[str, str],
    default_sort: str,
    request: PageRequest,
    tie: str = "id",
    args: Sequence[object] = (),
) -> tuple[list[Any], int]:
    """The rows of the page asked for, and how many there are on all pages.

    `select` is a SELECT without WHERE, and `args` its arguments; each condition numbers its own from `$1`; `sortable`
    maps the names that `sort` may have to expressions; `tie` is a unique column. Raises `invalid` for a `sort` that is
    not offered.
    """
    condition = joined(where, first=1 + len(args))
    given = (*args, *condition.args)
    order = _order(request.sort or default_sort, sortable, tie)
    limit, offset = request.page_size, (request.page - 1) * request.page_size
    rows = await queryable.fetch(
        f"{select} WHERE {condition.sql} ORDER BY {order} LIMIT ${len(given) + 1} OFFSET ${len(given) + 2}",
        *given,
        limit,
        offset,
    )
    if len(rows) < limit and (rows or offset == 0):
        return rows, offset + len(rows)
    counted = f"SELECT count(*) FROM ({select} WHERE {condition.sql}) AS counted"
    total = await queryable.fetchval(counted, *given)
    return rows, total


def _order(sort: str, sortable: Mapping[str, str], tie: str) -> str:
    name, direction = (sort[1:], "DESC") if sort.startswith("-") else (sort, "ASC")
    if name not in sortable:
        problem = f"this list is sorted by one of {', '.join(sorted(sortable))}, with - before it for descending order"
        raise wrong_field("sort", problem)
    return f"{sortable[name]} {direction} NULLS LAST, {tie} {direction}"
