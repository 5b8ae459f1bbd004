"""Sites with WordPress in them, ordered as people order them, and what a test plays of them."""

from __future__ import annotations

from typing import Any, cast

from svc_webhost.databases import EngineKind
from tests.panel.sites.world import World
from tests.support.harness import Client
from tests.support.recorded_databases import RecordedDatabases
from tests.support.wordpress import RecordedWordPress

DOMAIN = "blog.example"


def played(world: World) -> RecordedWordPress:
    return cast(RecordedWordPress, world.panel.host.wordpress)


def databases_of(world: World) -> RecordedDatabases:
    return cast(RecordedDatabases, world.panel.host.databases[EngineKind.MARIADB])


async def order(world: World, domain: str = DOMAIN, by: Client | None = None, **values: Any) -> dict[str, Any]:
    """The answer: a site that is being created."""
    return await world.create(domain, by, type="wordpress", **values)


async def creation_of(world: World, site: dict[str, Any]) -> dict[str, Any]:
    """The last job that makes it, when it has ended."""
    jobs = (await world.root.get("/jobs")).json()["items"]
    found = [job for job in jobs if job["site_id"] == site["id"] and job["kind"] == "site.create"]
    return await world.job_of(world.root, max(found, key=lambda job: cast(int, job["id"])))


async def made(world: World, domain: str = DOMAIN, by: Client | None = None, **values: Any) -> dict[str, Any]:
    """A site that visitors can open."""
    site = await order(world, domain, by, **values)
    job = await creation_of(world, site)
    assert job["status"] == "succeeded", job
    return cast(dict[str, Any], (await world.root.get(f"/sites/{site['id']}")).json())
