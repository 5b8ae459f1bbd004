"""Databases that release 0.1.0 made get the schema of new ones, and keep their rows.

`release_0_1_0/<service>.sql` are dumps of them: made by that release itself, in 55 and 45 migrations, with a few rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.store import (
    CONTROLLER_SCHEMA,
    PANEL_SCHEMA,
    Component,
    Database,
    MigrationError,
    dump,
    known_migrations,
    load,
    migrate,
)
from tests.conftest import Cluster
from tests.support.schema import schema_of

DUMPS = Path(__file__).parent / "release_0_1_0"

CONTROLLER_ROWS = """
SELECT vms.name, desired_power, net_wanted, nodes.name, host(allocations.ip), users.email, since = vms.created_at
FROM vms JOIN nodes ON nodes.id = node_id JOIN allocations ON vm_id = vms.id JOIN users ON users.id = created_by
     JOIN machine_stays ON machine_stays.vm_id = vms.id
"""
PANEL_ROWS = """
SELECT sites.domain, sites.number, users.email, site_domains.registrable, databases.name, jobs.title
FROM sites JOIN users ON users.id = owner_id JOIN site_domains ON site_domains.site_id = sites.id
     JOIN databases ON databases.site_id = sites.id JOIN jobs ON jobs.site_id = sites.id
"""
SERVICES = [
    (
        *("controller", CONTROLLER_SCHEMA, "svc_template", CONTROLLER_ROWS),
        ("web-1", "running", 1, "alpha", "192.0.2.10", "ada@example.test", True),
    ),
    (
        *("panel", PANEL_SCHEMA, "svc_panel_template", PANEL_ROWS),
        ("shop.example.test", 1001, "ada@example.test", "example.test", "s1001_shop", "Create the site"),
    ),
]


async def schema_as_restored(cluster: Cluster, url: str) -> list[tuple[object, ...]]:
    """After a backup and a restore: these rewrite conditions, and the databases of the release have had one before."""
    pieces: list[bytes] = []
    await dump(url, pieces.append)
    async with cluster.own_database() as copy, Database.open(copy, size=1) as restored:
        await load(copy, iter(pieces))
        return await schema_of(restored)


@pytest.mark.parametrize(("service", "components", "template", "query", "row"), SERVICES)
async def test_a_database_of_the_release_becomes_as_a_new_one(
    database_cluster: Cluster,
    service: str,
    components: tuple[Component, ...],
    template: str,
    query: str,
    row: tuple[object, ...],
) -> None:
    known = known_migrations(components)
    async with database_cluster.own_database(template) as url:
        wanted = await schema_as_restored(database_cluster, url)
    async with database_cluster.own_database() as url, Database.open(url, size=1) as old:
        await old.execute((DUMPS / f"{service}.sql").read_text())

        applied = await migrate(old, known)

        assert applied == [migration for migration in known if migration.release is None]
        assert await schema_as_restored(database_cluster, url) == wanted
        assert [tuple(each) for each in await old.fetch(query)] == [row]


@pytest.mark.parametrize("service", ["controller", "panel"])
async def test_a_database_whose_first_start_was_cut_short_is_refused_and_left_as_it_is(
    database_cluster: Cluster, service: str
) -> None:
    components = (Component.SHARED, Component(service))
    newest = known_migrations((Component(service),))[0].number
    async with database_cluster.own_database() as url, Database.open(url, size=1) as old:
        await old.execute((DUMPS / f"{service}.sql").read_text())
        await old.execute("DELETE FROM schema_migration WHERE component = $1 AND number = $2", service, newest)
        before = await schema_of(old)

        refusal = rf"has {newest - 1} of the {newest} migrations of {service} that release 0\.1\.0"
        with pytest.raises(MigrationError, match=refusal):
            await migrate(old, known_migrations(components))

        assert await schema_of(old) == before
