"""Applications as the database keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict
from svc_webhost.apps import App, AppInterface, AppRuntime

DEPLOYED: Final = "releases"
"""The folder within the site's own folder that contains a folder for each deployment."""
CHANNEL: Final = "apps"
"""Announced when releases of an application may no longer be needed."""

_COLUMNS: Final = """site_id, runtime, interface, entry, folder, health_path, last_release, wanted_release,
    live_release, problem, deployment, live_deployment"""


@dataclass(frozen=True)
class AppRow:
    """`wanted` is the release that should run, None for none; `live` the release that visitors reach. `deployment` and
    `live_deployment` are the deployments with their code, None if it lies in the site's folder itself."""

    site_id: UUID
    runtime: AppRuntime
    interface: AppInterface
    entry: str
    folder: str
    health_path: str
    last: int
    wanted: int | None
    live: int | None
    problem: str | None
    deployment: int | None
    live_deployment: int | None

    def release(self, site: SiteRow, number: int) -> App:
        deployment = self.live_deployment if number == self.live else self.deployment
        code = () if deployment is None else (DEPLOYED, str(deployment))
        return App(
            account=site.account,
            release=number,
            domain=site.domain,
            runtime=self.runtime,
            interface=self.interface,
            entry=self.entry,
            folder=str(PurePosixPath(*code, self.folder)),
            health_path=self.health_path,
            limits=site.limits,
        )


def as_app(row: Record) -> AppRow:
    return AppRow(
        site_id=row["site_id"],
        runtime=AppRuntime(row["runtime"]),
        interface=AppInterface(row["interface"]),
        entry=row["entry"],
        folder=row["folder"],
        health_path=row["health_path"],
        last=row["last_release"],
        wanted=row["wanted_release"],
        live=row["live_release"],
        problem=row["problem"],
        deployment=row["deployment"],
        live_deployment=row["live_deployment"],
    )


async def insert_app(tx: Transaction, site: SiteRow, values: Mapping[str, Any]) -> None:
    """`values`: runtime, interface, entry, folder and health_path. May be repeated after a creation of the site has
    failed."""
    await tx.execute(
        """INSERT INTO site_apps (site_id, runtime, interface, entry, folder, health_path)
           VALUES ($1, $2, $3, $4, $5, $6)
           ON CONFLICT (site_id) DO UPDATE
           SET runtime = $2, interface = $3, entry = $4, folder = $5, health_path = $6""",
        site.id,
        *(values[name] for name in ("runtime", "interface", "entry", "folder", "health_path")),
    )


async def change_app(tx: Transaction, app: AppRow, values: Mapping[str, Any]) -> None:
    assert values.keys() <= {"interface", "entry", "folder", "health_path"}
    for column, value in values.items():
        await tx.execute(f"UPDATE site_apps SET {column} = $2 WHERE site_id = $1", app.site_id, value)


async def read_app(queryable: Queryable, site_id: UUID) -> AppRow | None:
    row = await queryable.fetchrow(f"SELECT {_COLUMNS} FROM site_apps WHERE site_id = $1", site_id)
    return None if row is None else as_app(row)


async def app_of(queryable: Queryable, site: SiteRow) -> AppRow:
    """The site's application. Raises `conflict` if it has none."""
    app = await read_app(queryable, site.id)
    if app is None:
        raise conflict(f"{site.domain} is a site of the type {site.type.value} and has no application.")
    return app


async def write_wanted(tx: Transaction, app: AppRow, *, running: bool) -> None:
    """`running`: record a start, which gets a release of its own. Not `running`: no release should run."""
    await tx.execute(
        """UPDATE site_apps SET last_release = last_release + $2::boolean::int, problem = NULL,
               wanted_release = CASE WHEN $2 THEN last_release + 1 END
           WHERE site_id = $1""",
        app.site_id,
        running,
    )


async def write_deployment(tx: Transaction, app: AppRow, deployment: int) -> None:
    """Record that the next release runs the code of this deployment."""
    await tx.execute("UPDATE site_apps SET deployment = $2 WHERE site_id = $1", app.site_id, deployment)


async def write_live(tx: Transaction, app: AppRow, live: int | None) -> None:
    """`app` is the row as of the start of the release: meanwhile another deployment may have become the desired one."""
    await tx.execute(
        """UPDATE site_apps SET live_release = $2, problem = NULL,
               live_deployment = CASE WHEN $2::integer IS NULL THEN live_deployment ELSE $3 END
           WHERE site_id = $1""",
        app.site_id,
        live,
        app.deployment,
    )
    tx.announce(CHANNEL, str(app.site_id))


async def write_failed(tx: Transaction, app: AppRow, problem: str) -> None:
    """Record the failure: the live release stays, and becomes the desired one again."""
    await tx.execute(
        """UPDATE site_apps SET wanted_release = live_release, deployment = live_deployment, problem = $3
           WHERE site_id = $1 AND wanted_release = $2""",
        app.site_id,
        app.wanted,
        problem,
    )
    tx.announce(CHANNEL, str(app.site_id))
