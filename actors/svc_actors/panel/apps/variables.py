"""Variables of applications as the database keeps them: sealed, and opened only for the application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction
from svc_common.errors import wrong_field

MOST_VARIABLES: Final = 200
"""The most variables of a site."""
MOST_VARIABLE_BYTES: Final = 64 * 1024
"""The most bytes of a site's variables: names and values together."""
SEALED_VARIABLES: Final = "SELECT name, sealed_value FROM app_variables WHERE site_id = $1 ORDER BY name"


@dataclass(frozen=True)
class Variable:
    name: str
    set_at: datetime


async def variables_of(queryable: Queryable, site_id: UUID) -> list[Variable]:
    rows = await queryable.fetch("SELECT name, set_at FROM app_variables WHERE site_id = $1 ORDER BY name", site_id)
    return [Variable(row["name"], row["set_at"]) for row in rows]


async def open_variables(queryable: Queryable, sealer: Sealer, site_id: UUID) -> dict[str, str]:
    """The variables with their values. Only the application may get these."""
    rows = await queryable.fetch(SEALED_VARIABLES, site_id)
    return {row["name"]: sealer.unseal(row["sealed_value"], _purpose(site_id, row["name"])).decode() for row in rows}


def variable_bytes(name: str, value: str) -> int:
    """How many bytes of `MOST_VARIABLE_BYTES` the variable takes."""
    return len(name) + len(value.encode())


def variable_mark(sealer: Sealer, name: str, value: str) -> str:
    """A mark that is the same for the same value of a variable of this name, at any site. The value cannot be derived
    from the mark."""
    return sealer.mark(value.encode(), f"variable {name}").hex()


async def replace_variables(
    tx: Transaction, sealer: Sealer, site_id: UUID, values: Mapping[str, str | None]
) -> list[str]:
    """Replace all variables of the site; None keeps the current value. Returns the names of those that changed. The row
    of the application is locked. Raises `invalid` for a None without a current value."""
    before = await open_variables(tx, sealer, site_id)
    if absent := sorted(name for name, value in values.items() if value is None and name not in before):
        raise wrong_field("variables", f"null keeps the current value, but these have none yet: {', '.join(absent)}")
    after = {name: before[name] if value is None else value for name, value in values.items()}
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    await tx.execute("DELETE FROM app_variables WHERE site_id = $1 AND name = ANY($2)", site_id, changed)
    for name in changed:
        if name in after:
            sealed = sealer.seal(after[name].encode(), _purpose(site_id, name))
            await tx.execute(
                "INSERT INTO app_variables (site_id, name, sealed_value) VALUES ($1, $2, $3)", site_id, name, sealed
            )
    return changed


def _purpose(site_id: UUID, name: str) -> str:
    """The purpose names the site and the variable, so a row that is moved to another one cannot be unsealed."""
    return f"variable {name} of {site_id}"
