"""Password-protected paths of a site. Invariant: each path has at least one login."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from pydantic import ValidationError

from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable, Transaction
from svc_common.errors import conflict, not_found, wrong_field
from svc_webhost.nginx import ProtectedPath

MOST_PROTECTED: Final = 50
"""The most protected paths of a site: each is compared with the path of every request."""
MOST_LOGINS: Final = 100
"""The most logins of a protected path."""


@dataclass(frozen=True)
class Protection:
    id: UUID
    path: str
    logins: Sequence[str]


async def logins_of_paths(queryable: Queryable, sites: Collection[UUID]) -> dict[UUID, dict[str, dict[str, str]]]:
    """Password verifiers, by site, path and login."""
    rows = await queryable.fetch(
        """SELECT site_id, path, login, verifier FROM site_protected_paths JOIN site_path_logins ON protected_id = id
           WHERE site_id = ANY($1) ORDER BY path, login""",
        list(sites),
    )
    found: dict[UUID, dict[str, dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["site_id"], {}).setdefault(row["path"], {})[row["login"]] = row["verifier"]
    return found


def protected_path(path: str, logins: Mapping[str, str]) -> ProtectedPath:
    """The protected path in the web server's model. Raises `ValidationError` if the model does not accept it."""
    told = [{"login": login, "verifier": verifier} for login, verifier in logins.items()]
    return ProtectedPath.model_validate({"path": path, "logins": told})


async def protect(tx: Transaction, site: SiteRow, path: str, logins: Mapping[str, str]) -> UUID:
    """`logins`: at least one login, each with its password verifier. Raises `invalid` for a path or login that the web
    server does not accept, and `conflict`."""
    try:
        protected_path(path, logins)
    except ValidationError as error:
        [field, *_] = error.errors()[0]["loc"]
        raise wrong_field("path" if field == "path" else "login", "the web server does not accept this value") from None
    if await tx.fetchval("SELECT count(*) FROM site_protected_paths WHERE site_id = $1", site.id) >= MOST_PROTECTED:
        raise conflict(f"A site has at most {MOST_PROTECTED} protected paths; nothing was changed.")
    protected_id: UUID | None = await tx.fetchval(
        "INSERT INTO site_protected_paths (site_id, path) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING id",
        site.id,
        path,
    )
    if protected_id is None:
        raise conflict(
            f"{path} is already protected; nothing was changed.",
            hint="Add a login to it: `svc protected-path set-login`.",
        )
    for login, verifier in logins.items():
        await write_login(tx, protected_id, login, verifier)
    return protected_id


async def write_login(tx: Transaction, protected_id: UUID, login: str, verifier: str) -> None:
    """Add the login, or replace its password."""
    known = await tx.fetchval(
        "SELECT count(*) FROM site_path_logins WHERE protected_id = $1 AND login <> $2", protected_id, login
    )
    if known >= MOST_LOGINS:
        raise conflict(f"A path has at most {MOST_LOGINS} logins; nothing was changed.")
    await tx.execute(
        """INSERT INTO site_path_logins (protected_id, login, verifier) VALUES ($1, $2, $3)
           ON CONFLICT (protected_id, login) DO UPDATE SET verifier = excluded.verifier""",
        protected_id,
        login,
        verifier,
    )


async def remove_login(tx: Transaction, protection: Protection, login: str) -> None:
    """Remove a login. Raises `not_found`, and `conflict` for the path's last login."""
    if login not in protection.logins:
        raise not_found(f"{protection.path} has no login {login}.")
    if len(protection.logins) == 1:
        raise conflict(
            f"{login} is the last login of {protection.path}; nothing was changed.",
            hint="Add another login first. `svc protected-path delete` removes the protection.",
        )
    await tx.execute("DELETE FROM site_path_logins WHERE protected_id = $1 AND login = $2", protection.id, login)


async def protection_of(queryable: Queryable, site_id: UUID, protected_id: UUID) -> Protection:
    for found in await protections_of(queryable, site_id):
        if found.id == protected_id:
            return found
    raise not_found("There is no such protected path.")


async def protections_of(queryable: Queryable, site_id: UUID) -> list[Protection]:
    rows = await queryable.fetch(
        """SELECT id, path, array_agg(login ORDER BY login) AS logins
           FROM site_protected_paths JOIN site_path_logins ON protected_id = id
           WHERE site_id = $1 GROUP BY id, path ORDER BY path""",
        site_id,
    )
    return [Protection(row["id"], row["path"], tuple(row["logins"])) for row in rows]


async def unprotect(tx: Transaction, protection: Protection) -> None:
    await tx.execute("DELETE FROM site_protected_paths WHERE id = $1", protection.id)
