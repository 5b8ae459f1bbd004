"""Labels of machines, and the selector that filters machines by them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from svc.registry.paging import EVERYTHING, Condition
from svc.registry.shapes import Shape

_KEY = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?)?"
_MOST = 32
_WHAT = "letters, digits, dots, slashes, hyphens and underscores, 63 at most, with a letter or digit at both ends"


Labels = Annotated[
    dict[
        Annotated[str, Shape(_KEY, f"a label's name: {_WHAT}")],
        Annotated[str, Shape(_VALUE, f"a label's value: {_WHAT}, or empty")],
    ],
    Field(description='All labels, as {"env": "production"}; {} removes them.', max_length=_MOST),
]
Selector = Annotated[
    str,
    Field(
        max_length=500,
        description="Only machines with these labels: env=production (this value) or web (any value), with commas "
        "between them.",
    ),
    Shape(
        rf"{_KEY}(={_VALUE})?(,{_KEY}(={_VALUE})?)*", "labels with commas between them: env=production, or env alone"
    ),
]


def has_labels(selector: str | None, column: str = "vms.labels") -> Condition:
    """True for rows with labels in `column` that have each label of the selector, with the selector's value if it gives
    one."""
    if selector is None:
        return EVERYTHING
    terms = [term.partition("=") for term in selector.split(",")]
    keys = [key for key, equals, _ in terms if not equals]
    # If a key is given with two values, no machine matches, because none has both.
    values = [{key: value} for key, equals, value in terms if equals]
    clauses = [f"{column} <> '{{}}'", f"{column} ?& $1::text[]"]
    clauses += [f"{column} @> ${number}::jsonb" for number, _ in enumerate(values, start=2)]
    return Condition(" AND ".join(clauses), (keys, *values))
