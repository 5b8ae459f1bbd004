"""Finding machines by part of the name, by an address, or by the start of the id.

Each condition here uses an index, each a different one. PostgreSQL uses no index for an OR over several tables, so a
search by several conditions is a UNION of ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from uuid import UUID

from svc.registry.paging import EVERYTHING, Condition, contains, joined, literally

_PIECES: Final = "text_pieces(ARRAY[name, hostname])"
_LIKE_AN_ADDRESS: Final = re.compile(r"(?=.*[.:])[0-9a-f.:/]+", re.IGNORECASE)
_LEAST_OF_AN_ID: Final = 6
"""The least length of a text that is searched as the start of an id: a shorter one is more likely a word."""


def named(q: str | None) -> Condition:
    """Machines with the text in their name or host name; all machines without a text."""
    if not q:
        return EVERYTHING
    texts = contains(q, "name", "hostname", pieces=_PIECES)
    return Condition(f"vms.id IN (SELECT vm_id FROM vm_texts WHERE {texts.sql})", texts.args)


def named_or_addressed(q: str | None) -> Condition:
    """Machines with the text in their name or host name, or with an address that starts with it."""
    holders = holders_of(q) if q else None
    if holders is None:
        return named(q)
    both = union([Condition(f"SELECT vms.id FROM vms WHERE {named(q).sql}", named(q).args), holders])
    return Condition(f"vms.id IN ({both.sql})", both.args)


def holders_of(q: str) -> Condition | None:
    """A SELECT of the ids of machines with an address that starts with `q`, or an IPv6 sub-prefix that contains `q`;
    None if `q` does not look like an address."""
    if not _LIKE_AN_ADDRESS.fullmatch(q):
        return None
    beginning = Condition(
        "SELECT vm_id AS id FROM allocations WHERE vm_id IS NOT NULL AND address_text(ip) LIKE $1",
        (literally(q.lower()) + "%",),
    )
    try:
        address = ip_address(q)
    except ValueError:
        return beginning
    inside = Condition(
        """SELECT held.vm_id AS id FROM pools JOIN allocations held
               ON held.pool_id = pools.id AND held.ip = network(set_masklen($1::inet, pools.prefix_len))::inet
           WHERE pools.cidr >>= $1::inet AND pools.family = family($1::inet) AND held.vm_id IS NOT NULL""",
        (address,),
    )
    return union([beginning, inside])


def id_prefix(q: str, column: str) -> Condition | None:
    """True where the id in `column` starts with `q`; None if `q` cannot be the start of an id."""
    digits = q.lower().replace("-", "")
    if len(q) < _LEAST_OF_AN_ID or len(digits) > 32 or set(digits) - set("0123456789abcdef"):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return Condition(f"{column} BETWEEN $1 AND $2", (first, last))


def union(selects: Sequence[Condition]) -> Condition:
    """A UNION of these SELECTs, whose arguments are renumbered."""
    numbered: list[str] = []
    args: list[object] = []
    for select in selects:
        shifted = joined([select], first=1 + len(args))
        numbered.append(shifted.sql)
        args += shifted.args
    return Condition(" UNION ".join(numbered), tuple(args))
