"""Programs of a site that answer for paths without a file."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.panel.sites.php import PHP_TYPES
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found, wrong_field
from svc_webhost.nginx import FrontController

MOST_FRONT_CONTROLLERS: Final = 30
"""The most front controllers of a site: each is compared with the path of every request."""


async def add_front_controller(tx: Transaction, site: SiteRow, controller: FrontController) -> UUID:
    """Raises `invalid` for a site without PHP, and `conflict`."""
    if site.type not in PHP_TYPES:
        raise wrong_field("php_file", "only sites of the types php and wordpress run PHP programs")
    count = await tx.fetchval("SELECT count(*) FROM site_front_controllers WHERE site_id = $1", site.id)
    if count >= MOST_FRONT_CONTROLLERS:
        raise conflict(f"A site has at most {MOST_FRONT_CONTROLLERS} front controllers; nothing was changed.")
    try:
        controller_id: UUID = await tx.fetchval(
            """INSERT INTO site_front_controllers (site_id, path, php_file, path_info, parameter, serves_files)
               VALUES ($1, $2, $3, $4, $5, $6) RETURNING id""",
            site.id,
            controller.path,
            controller.php_file,
            controller.path_info,
            controller.parameter,
            controller.serves_files,
        )
    except UniqueViolationError:
        raise conflict(f"{controller.path} has a front controller already; nothing was changed.") from None
    return controller_id


async def remove_front_controller(tx: Transaction, site: SiteRow, controller_id: UUID) -> str:
    """Returns the path that it answered for."""
    path: str | None = await tx.fetchval(
        "DELETE FROM site_front_controllers WHERE id = $1 AND site_id = $2 RETURNING path", controller_id, site.id
    )
    if path is None:
        raise not_found("There is no such front controller.")
    return path


async def remove_front_controller_of(tx: Transaction, site: SiteRow, path: str) -> None:
    """Remove the front controller of this path, if there is one."""
    await tx.execute("DELETE FROM site_front_controllers WHERE site_id = $1 AND path = $2", site.id, path)
