"""What is over is kept for as long as the settings say, and no longer; what something still refers to stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc_actors.controller.retention import (
    remove_deleted_machines,
    remove_old_samples,
    remove_old_tasks,
    remove_old_traffic,
)
from svc_actors.store import Database
from svc_actors.store import removal as removal_module
from svc_actors.store.removal import remove_rows


async def add_task(database: Database, *, ended_days_ago: int | None, lines: int = 3) -> UUID:
    task_id: UUID = await database.fetchval(
        """
        INSERT INTO tasks (op, status, resource_kind, resource_id, resource_name, caller, deadline_at, ended_at)
        VALUES ('vm.start', CASE WHEN $1::int IS NULL THEN 'running' ELSE 'succeeded' END, 'vm', $2, 'm', '{}', now(),
                now() - make_interval(days => $1))
        RETURNING id
        """,
        ended_days_ago,
        uuid4(),
    )
    await database.execute(
        "INSERT INTO task_events (task_id, position, message) SELECT $1, g, 'x' FROM generate_series(1, $2::int) g",
        task_id,
        lines,
    )
    return task_id


async def add_machine(database: Database, *, deleted_days_ago: int | None) -> UUID:
    project = await database.fetchval("INSERT INTO projects (name) VALUES ($1) RETURNING id", uuid4().hex)
    image = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
           VALUES ($1, 'i', 'linux', 'd', '1', 'u', 'qcow2', 'file', true) RETURNING id""",
        uuid4().hex,
    )
    network = await database.fetchval("INSERT INTO networks (name) VALUES ($1) RETURNING id", uuid4().hex)
    vm_id: UUID = await database.fetchval(
        """INSERT INTO vms (name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode,
                            deleted_at) VALUES (
               'm', 'm', $1, $2, 1, 64, 1, 'running', 'user_sudo', now() - make_interval(days => $3)) RETURNING id""",
        project,
        image,
        deleted_days_ago,
    )
    await database.execute(
        "INSERT INTO nics (vm_id, network_id, position, mac) VALUES ($1, $2, 0, $3::text::macaddr)",
        vm_id,
        network,
        "52:54:00:" + ":".join(f"{byte:02x}" for byte in vm_id.bytes[:3]),
    )
    return vm_id


async def add_node(database: Database) -> Any:
    location = await database.fetchval("INSERT INTO locations (name) VALUES ('l') RETURNING id")
    return await database.fetchval(
        "INSERT INTO nodes (name, location_id, host_uuid) VALUES ('n', $1, $2) RETURNING id", location, uuid4()
    )


async def test_tasks_go_with_their_logs_and_open_or_young_ones_stay(database: Database) -> None:
    for _ in range(5):
        await add_task(database, ended_days_ago=100, lines=700)
    stays = {await add_task(database, ended_days_ago=80), await add_task(database, ended_days_ago=None)}

    removed = await remove_old_tasks(database, timedelta(days=90))

    assert removed == 5
    assert {row["id"] for row in await database.fetch("SELECT id FROM tasks")} == stays
    assert await database.fetchval("SELECT count(*) FROM task_events") == 6


async def test_samples_older_than_they_are_kept_go(database: Database) -> None:
    node = await add_node(database)
    await database.execute(
        """INSERT INTO node_samples (node_id, hour, samples, load_1m, memory_free_mib, disk_free_gib)
           SELECT $1, now() - make_interval(days => g), 1, 0, 0, 0 FROM generate_series(1, 10) g""",
        node,
    )

    assert await remove_old_samples(database, timedelta(days=7)) == 4


async def test_a_deleted_machine_stays_for_as_long_as_its_traffic_is_kept(database: Database) -> None:
    node, alive = await add_node(database), await add_machine(database, deleted_days_ago=None)
    old, counted = [await add_machine(database, deleted_days_ago=100) for _ in range(2)]
    for vm_id, period in ((counted, "2020-01"), (alive, "2020-01")):
        await database.execute(
            """INSERT INTO traffic_readings
                   (vm_id, period, node_id, ledger_id, received, sent, resets, samples, first_at, last_at)
               VALUES ($1, $2, $3, $4, 1, 1, 0, 1, now(), now())""",
            vm_id,
            period,
            node,
            uuid4(),
        )

    assert await remove_deleted_machines(database, timedelta(days=90)) == 1
    assert await database.fetchval("SELECT count(*) FROM vms WHERE id = $1", old) == 0

    assert await remove_old_traffic(database, months=25) == 2
    assert await remove_deleted_machines(database, timedelta(days=90)) == 1
    assert [row["id"] for row in await database.fetch("SELECT id FROM vms")] == [alive]


async def test_a_row_that_somebody_has_locked_holds_up_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal_module, "BATCH", 3)
    await database.execute("CREATE TABLE entry (id int PRIMARY KEY)")
    await database.execute("INSERT INTO entry SELECT generate_series(1, 10)")

    async with database.transaction() as tx:
        await tx.execute("SELECT FROM entry WHERE id = 4 FOR UPDATE")
        with trio.fail_after(30):
            removed = await remove_rows(database, "entry", "id < $1", 9)

    assert removed == 7
    assert [row["id"] for row in await database.fetch("SELECT id FROM entry ORDER BY id")] == [4, 9, 10]
