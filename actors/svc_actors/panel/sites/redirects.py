"""Redirects of a site's paths to other URLs."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found, wrong_field
from svc_webhost.nginx import CHALLENGES, PathRedirect

MOST_REDIRECTS: Final = 500
"""The most redirects of a site: each is a location in the web server's configuration."""


async def add_redirect(tx: Transaction, site: SiteRow, path: str, target: str, status: int, *, below: bool) -> UUID:
    """Raises `invalid` for a redirect that the web server does not accept, and `conflict`."""
    if path.startswith(CHALLENGES):
        raise wrong_field("path", f"what is beneath {CHALLENGES} is not redirected: certificates depend on it")
    try:
        PathRedirect.model_validate({"source": path, "target": target, "status": status, "below": below})
    except ValueError:
        raise wrong_field("path", "the web server does not accept this path or target") from None
    if await tx.fetchval("SELECT count(*) FROM site_redirects WHERE site_id = $1", site.id) >= MOST_REDIRECTS:
        raise conflict(f"A site has at most {MOST_REDIRECTS} redirects.")
    try:
        redirect_id: UUID = await tx.fetchval(
            """INSERT INTO site_redirects (site_id, path, target, status, below) VALUES ($1, $2, $3, $4, $5)
               RETURNING id""",
            site.id,
            path,
            target,
            status,
            below,
        )
    except UniqueViolationError:
        raise conflict(f"The site has a redirect of {path} already; nothing was changed.") from None
    return redirect_id


async def remove_redirect(tx: Transaction, site: SiteRow, redirect_id: UUID) -> str:
    """Returns the path that was redirected."""
    path: str | None = await tx.fetchval(
        "DELETE FROM site_redirects WHERE id = $1 AND site_id = $2 RETURNING path", redirect_id, site.id
    )
    if path is None:
        raise not_found("There is no such redirect.")
    return path


async def remove_redirect_of(tx: Transaction, site: SiteRow, path: str, *, below: bool) -> None:
    """Remove the redirect of this path, if there is one."""
    await tx.execute("DELETE FROM site_redirects WHERE site_id = $1 AND path = $2 AND below = $3", site.id, path, below)
