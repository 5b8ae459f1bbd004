"""Deployments of applications as the database keeps them.

`building` becomes `ready` or `failed`; a `ready` deployment becomes `removed` when there are newer ones. A site builds
one deployment at a time.

Invariant: the running and the desired deployment are `ready`. Only these two need their folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.panel.apps.records import AppRow
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict
from svc_webhost.apps.builds import Build
from svc_webhost.apps.repository import Repository, SshRepository

KEPT: Final = 5
_COLUMNS: Final = """number, archive, git_url, git_ref, git_commit, build, build_script, status, problem, job_id,
                     created_at"""


class DeploymentStatus(StrEnum):
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"
    REMOVED = "removed"


@dataclass(frozen=True)
class Source:
    """Where the code comes from: an archive among the site's files, or a branch, tag or commit of a git repository."""

    archive: str | None = None
    git_url: str | None = None
    git_ref: str | None = None

    def __str__(self) -> str:
        return self.archive or f"{self.git_ref} of {self.git_url}"

    @property
    def by_ssh(self) -> SshRepository | None:
        return None if self.git_url is None else Repository(self.git_url, self.git_ref or "").by_ssh

    @property
    def record(self) -> dict[str, str]:
        """The source as it is stored in job parameters and in the audit."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Deployment:
    """`git_commit`: the commit that the branch or tag named when it was fetched. `build_script`: the script of
    package.json that npm ran."""

    number: int
    source: Source
    git_commit: str | None
    build: Build
    build_script: str | None
    status: DeploymentStatus
    problem: str | None
    job_id: int
    created_at: datetime


async def deployments_of(queryable: Queryable, site_id: UUID, most: int) -> list[Deployment]:
    """The newest first."""
    rows = await queryable.fetch(
        f"SELECT {_COLUMNS} FROM app_deployments WHERE site_id = $1 ORDER BY number DESC LIMIT $2", site_id, most
    )
    return [_deployment(row) for row in rows]


async def next_number(tx: Transaction, site_id: UUID) -> int:
    """The row of the site is locked. Raises `conflict` while a deployment is being built."""
    row = await tx.fetchone(
        """SELECT coalesce(max(number), 0) + 1 AS next, count(*) FILTER (WHERE status = 'building') AS building
           FROM app_deployments WHERE site_id = $1""",
        site_id,
    )
    if row["building"]:
        raise conflict("The application is already being deployed; nothing was started.", hint="Wait for its job.")
    return int(row["next"])


async def insert_deployment(
    tx: Transaction, site_id: UUID, number: int, source: Source, build: Build, build_script: str | None, job_id: int
) -> None:
    await tx.execute(
        """INSERT INTO app_deployments (site_id, number, archive, git_url, git_ref, build, build_script, job_id)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8)""",
        *(site_id, number, source.archive, source.git_url, source.git_ref, build.value, build_script, job_id),
    )


async def write_commit(tx: Transaction, site_id: UUID, number: int, commit: str) -> None:
    await tx.execute(
        "UPDATE app_deployments SET git_commit = $3 WHERE site_id = $1 AND number = $2", site_id, number, commit
    )


async def write_ready(tx: Transaction, site_id: UUID, number: int) -> None:
    await tx.execute(
        "UPDATE app_deployments SET status = 'ready' WHERE site_id = $1 AND number = $2 AND status = 'building'",
        site_id,
        number,
    )


async def write_unusable(tx: Transaction, site_id: UUID, number: int, problem: str) -> None:
    """Mark a deployment as failed, unless it already runs."""
    await tx.execute(
        """UPDATE app_deployments SET status = 'failed', problem = $3
           WHERE site_id = $1 AND number = $2 AND status IN ('building', 'ready')
                 AND NOT EXISTS (SELECT FROM site_apps WHERE site_id = $1 AND $2 IN (deployment, live_deployment))""",
        site_id,
        number,
        problem,
    )


async def require_ready(tx: Transaction, app: AppRow, number: int | None) -> int:
    """Returns the number of the deployment to run, by default the one before the running one. Raises `conflict` if its
    code is not on the server."""
    if number is None:
        number = await tx.fetchval(
            "SELECT max(number) FROM app_deployments WHERE site_id = $1 AND status = 'ready' AND number < $2",
            app.site_id,
            app.live_deployment or 0,
        )
        if number is None:
            raise conflict("There is no earlier deployment to go back to; the running release was left as it is.")
        return int(number)
    status = await tx.fetchval(
        "SELECT status FROM app_deployments WHERE site_id = $1 AND number = $2", app.site_id, number
    )
    if status != DeploymentStatus.READY:
        why = "There is no such deployment" if status is None else f"Deployment {number} is {status}"
        raise conflict(f"{why}; the running release was left as it is.", hint="`svc app deployments` lists them.")
    return number


async def mark_removed(tx: Transaction, site_id: UUID) -> None:
    """Mark all deployments as removed except the newest few, the running one and the desired one."""
    await tx.execute(
        """UPDATE app_deployments SET status = 'removed'
           WHERE site_id = $1 AND status = 'ready'
                 AND NOT EXISTS (SELECT FROM site_apps
                                 WHERE site_id = $1 AND app_deployments.number IN (deployment, live_deployment))
                 AND number NOT IN (SELECT number FROM app_deployments WHERE site_id = $1 AND status = 'ready'
                                    ORDER BY number DESC LIMIT $2)""",
        site_id,
        KEPT,
    )


async def stale_folders(queryable: Queryable, site_id: UUID) -> frozenset[str]:
    """Names below `releases/` of deployments that can no longer run. All other names there are the owner's."""
    rows = await queryable.fetch(
        "SELECT number FROM app_deployments WHERE site_id = $1 AND status IN ('failed', 'removed')", site_id
    )
    return frozenset(str(row["number"]) for row in rows)


def _deployment(row: Record) -> Deployment:
    return Deployment(
        number=row["number"],
        source=Source(row["archive"], row["git_url"], row["git_ref"]),
        git_commit=row["git_commit"],
        build=Build(row["build"]),
        build_script=row["build_script"],
        status=DeploymentStatus(row["status"]),
        problem=row["problem"],
        job_id=row["job_id"],
        created_at=row["created_at"],
    )
