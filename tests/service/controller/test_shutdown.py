"""A controller that is stopped finishes what it knows the end of, and leaves the rest to its next start."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc.controller.config import ControllerConfig
from svc.controller.services import Controller
from svc.service.controller.services import open_services
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.tasks.runner import Ending, ResourceKind, Task, TaskRun, create_task, end_task
from svc_actors.store import Database
from svc_common.errors import ServiceError
from tests.support.callers import ADMINISTRATOR


async def test_the_end_of_a_task_is_stored_by_its_actor_during_a_shutdown(database: Database, tmp_path: Path) -> None:
    config = ControllerConfig(
        data_dir=tmp_path,
        public_host="localhost",
        bind_host="127.0.0.1",
        api_port=0,
        gateway_port=0,
        operations_port=0,
    )
    has_outcome, stopping = trio.Event(), trio.Event()

    async def notice_the_stop(services: Controller) -> None:
        while not (services.tasks.draining or services.actors.draining):
            await trio.sleep(0.002)
        stopping.set()

    async with trio.open_nursery() as nursery:
        async with open_services(config, database, enabled_loops=()) as services:

            async def work(_: TaskRun) -> None: ...

            async def end(task: Task, ending: Ending) -> None:
                has_outcome.set()
                await stopping.wait()
                with pytest.raises(ServiceError, match="no such machine"):  # The actor's answer: it was asked.
                    await services.actors.ref(Machine, str(task.resource_id)).ask(Machine.task_ended, task, ending)
                async with database.transaction() as tx:
                    await end_task(tx, task.id, ending)

            services.tasks.handles("test.op", work, end=end)
            services.tasks.start(await new_task(database))
            await has_outcome.wait()
            nursery.start_soon(notice_the_stop, services)

    assert await database.fetchval("SELECT status FROM tasks") == "succeeded"


async def new_task(database: Database) -> Task:
    async with database.transaction() as tx:
        return await create_task(
            tx,
            ADMINISTRATOR,
            op="test.op",
            resource_kind=ResourceKind.VM,
            resource_id=uuid4(),
            resource_name="thing",
            node_id=None,
            project_id=None,
            parameters={},
            timeout=60.0,
        )
