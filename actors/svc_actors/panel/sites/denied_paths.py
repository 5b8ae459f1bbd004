"""Paths of a site that visitors may not open."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found, wrong_field
from svc_webhost.accepted import is_denied_pattern

MOST_DENIED: Final = 100
"""The most denied paths of a site: each pattern is compared with the path of every request."""


async def add_denied_path(tx: Transaction, site: SiteRow, pattern: str) -> UUID:
    """Raises `invalid` for a pattern that the web server does not accept, and `conflict`."""
    if not is_denied_pattern(pattern):
        raise wrong_field("pattern", "the web server does not accept this pattern")
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
