"""Power cuts in the middle of a migration of the database: the next start does it anew, and nothing is half done.

The controller is a process of its own with its own PostgreSQL and real migrations, on a database of an older release
with rows in it. Where it is when the power goes is chosen by a lock on a table that a migration comes to, held by a
prepared transaction, which outlives the server.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from svc_actors.store import Database, Migration, embedded, known_migrations, migrate
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.server_folder import Folder
from tests.support import postgres_server
from tests.support.figures import report_figure
from tests.support.schema import schema_of
from tests.support.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MACHINES = 2_000
ROWS = f"""
INSERT INTO locations (name) VALUES ('here');
INSERT INTO projects (name) VALUES ('kept');
INSERT INTO nodes (name, location_id, host_uuid) SELECT 'alpha', id, gen_random_uuid() FROM locations;
INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
VALUES ('demo', 'Demo', 'linux', 'demo', '1', 'demo', 'qcow2', 'file', true);
INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode,
                 built_at)
SELECT 'vm-' || n, 'vm-' || n, projects.id, nodes.id, images.id, 1, 128, 1, 'stopped', 'user_sudo', now()
FROM projects, nodes, images, generate_series(1, {MACHINES}) n;
"""


def release(**newest: int) -> list[Migration]:
    """The migrations of a release, by the newest number of a component; of one that is not named, all."""
    return [each for each in known_migrations() if each.number <= newest.get(each.component.value, each.number)]


OLD = release(shared=18, controller=37)
"""0.1.0, which the rows are of."""

POINTS = [
    # What the database has, and the lock that the migration after it meets.
    (release(controller=41), "images IN EXCLUSIVE MODE"),  # at the beginning of controller/0042
    (release(controller=49), "volumes IN EXCLUSIVE MODE"),  # in controller/0050, with functions and a setting made
    (known_migrations()[:-1], "schema_migration IN SHARE MODE"),  # with all of the last one done, and not recorded
]


@pytest.fixture
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="svc-test-", dir="/var/lib"))
    folder.chmod(0o755)
    stack = Stack(folder)
    try:
        yield stack
    finally:
        cut_power(stack)
        shutil.rmtree(folder, ignore_errors=True)


def cut_power(stack: Stack) -> None:
    """The service, its PostgreSQL and every process of that end at once."""
    if stack.controller.process is not None:
        stack.controller.process.kill()
        stack.controller.process.wait()
    postgres_server.cut_power(stack.controller_data / "postgresql")


@asynccontextmanager
async def database_of(stack: Stack) -> AsyncIterator[Database]:
    """Its database, for the owner, while the controller does not run."""
    async with embedded(stack.controller_data / "postgresql") as url, Database.open(url, size=1) as database:
        yield database


async def prepare(stack: Stack) -> None:
    async with database_of(stack) as database:
        await migrate(database, OLD)
        await database.execute(ROWS)
    async with embedded(stack.controller_data / "postgresql") as url:
        superuser = url.replace("//svc_owner@", "//postgres@")
        async with Database.open(superuser, size=1) as database:
            await database.execute("ALTER SYSTEM SET max_prepared_transactions = 2")


async def until_in_the_middle(stack: Stack) -> None:
    """The controller's migration waits for the lock."""
    folder = Folder.prepare(stack.controller_data / "postgresql", PROGRAMS)
    with trio.fail_after(60):
        while not (stack.controller.running() and folder.is_ready()):
            await trio.sleep(0.05)  # another process starts; nothing is asserted by the pause
        async with Database.open(folder.url("postgres", "svc"), size=1) as database:
            while not await database.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name = 'svc migration' AND wait_event_type = 'Lock'"
            ):
                assert stack.controller.running(), stack.controller.tail()
                await trio.sleep(0.02)


async def test_a_power_cut_in_a_migration_leaves_the_schema_as_before_it_and_the_next_start_goes_on(
    stack: Stack, database: Database
) -> None:
    wanted = await schema_of(database)
    await prepare(stack)
    for reached, lock in POINTS:
        async with database_of(stack) as own:
            await migrate(own, reached)
            await own.execute(f"BEGIN; LOCK TABLE {lock}; PREPARE TRANSACTION 'held'")
            before = await schema_of(own)

        stack.controller.start()
        await until_in_the_middle(stack)
        cut_power(stack)

        async with database_of(stack) as own:
            after = await schema_of(own)
            await own.execute("ROLLBACK PREPARED 'held'")
        assert after == before, lock

    began = trio.current_time()
    await stack.start_controller()
    report_figure(f"after a power cut in a migration: served {trio.current_time() - began:.1f} s after the start")
    cut_power(stack)

    async with database_of(stack) as own:
        assert await schema_of(own) == wanted
        assert await own.fetchval("SELECT count(*) FROM vms WHERE desired_power = 'stopped'") == MACHINES
        assert await own.fetchval("SELECT count(*) FROM machine_stays") == MACHINES
