"""Paths of a site that visitors may not open."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from svc_actors.errors import conflict, not_found, wrong_field
from svc_actors.host.nginx import DeniedPattern
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction, UniqueViolationError

MOST_DENIED: Final = 100
"""Per site: each pattern is compared with the path of every request."""
_PATTERN: Final = TypeAdapter[str](DeniedPattern)


async def add_denied_path(tx: Transaction, site: SiteRow, pattern: str) -> UUID:
    """Raises `invalid` for a pattern that the web server does not accept, and `conflict`."""
    try:
        _PATTERN.validate_python(pattern)
    except ValueError:
        raise wrong_field("pattern", "the web server does not accept this pattern") from None
    if await tx.fetchval("SELECT count(*) FROM site_denied_paths WHERE site_id = $1", site.id) >= MOST_DENIED:
        raise conflict(f"A site has at most {MOST_DENIED} denied paths; nothing was changed.")
    try:
        denied_id: UUID = await tx.fetchval(
            "INSERT INTO site_denied_paths (site_id, pattern) VALUES ($1, $2) RETURNING id", site.id, pattern
        )
    except UniqueViolationError:
        raise conflict(f"{pattern} is already denied; nothing was changed.") from None
    return denied_id


async def remove_denied_path(tx: Transaction, site: SiteRow, denied_id: UUID) -> str:
    """Returns the removed pattern."""
    pattern: str | None = await tx.fetchval(
        "DELETE FROM site_denied_paths WHERE id = $1 AND site_id = $2 RETURNING pattern", denied_id, site.id
    )
    if pattern is None:
        raise not_found("There is no such denied path.")
    return pattern
