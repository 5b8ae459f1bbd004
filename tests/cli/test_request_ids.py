"""One request id leads through everything that a request has caused."""

from __future__ import annotations

import io
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from svc.cli.client import Client
from tests.cli.conftest import SEEN, House, opened_house
from tests.support.configuration import local_config
from tests.support.logs import lines_of, service_log

AGENT = Path(sys.executable).parent / "svc-nodeagent"
ORDER = "order-20261122.7"


def events(text: str, request_id: str) -> dict[str, dict[str, Any]]:
    return {line["event"]: line for line in lines_of(text) if line.get("request_id") == request_id}


@asynccontextmanager
async def simulated_agent(house: House, folder: Path) -> AsyncIterator[Path]:
    """A node's agent as a process of its own, with machines in memory; gives its log."""
    async with Client.open(house.profile) as client:
        token = (await client.call("POST", "/nodes/bootstrap", body={"name": "n1"}))["token"]
    given = {"SVC_CONTROLLER": house.url, "SVC_TOKEN": token, "SVC_FINGERPRINT": house.fingerprint}
    await trio.run_process([AGENT, "enrol", "--data", str(folder)], env=dict(os.environ) | given)
    written = folder.with_suffix(".log")
    with written.open("wb") as log:
        async with trio.open_nursery() as nursery:
            running = [str(AGENT), "run", "--simulated", "--data", str(folder)]
            await nursery.start(partial(trio.run_process, running, stderr=log))
            async with Client.open(house.profile) as client:
                while not (await client.call("GET", "/nodes", query={"state": "online"}))["items"]:
                    await trio.sleep(0.05)  # the node reports by itself; nothing is asserted by the pause
            yield written
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def http(house: House) -> AsyncIterator[httpx.AsyncClient]:
    context = ssl.create_default_context(cadata=house.profile.trusted)
    headers = {"Authorization": f"Bearer {house.profile.token}"}
    async with httpx.AsyncClient(base_url=f"{house.url}/api/v1", verify=context, headers=headers, timeout=30) as client:
        yield client


async def test_a_creation_is_found_by_its_request_id_in_answer_task_audit_and_every_log(
    database_url: str, tmp_path: Path
) -> None:
    config = local_config(tmp_path / "controller")
    service = io.StringIO()
    with service_log(service), trio.fail_after(90):
        async with (
            opened_house(config, {"SVC_DATABASE_URL": database_url}, tmp_path, SEEN) as house,
            simulated_agent(house, tmp_path / "agent") as agent_log,
            http(house) as client,
        ):
            await house.image()
            [project] = (await client.get("/projects")).json()["items"]
            wanted = {"name": "web-1", "image": "tiny", "project_id": project["id"], "password": True}
            size = {"vcpus": 1, "memory_mib": 128, "disk_gib": 1}

            made = await client.post("/vms", json=wanted | size, headers={"X-Request-Id": ORDER})
            task = made.json()["task"]
            await house.ok("task", "watch", task["id"])
            refused = await client.post("/vms", json=wanted | size)
            told = await house.svc("vm", "show", "00000000-0000-4000-8000-000000000000")
            shown = (await client.get(f"/tasks/{task['id']}")).json()
            activity = (await client.get("/activity")).json()["items"]
            log_of_agent = agent_log.read_text()

    assert made.status_code == 201, made.text
    assert made.headers["X-Request-Id"] == ORDER
    assert shown["status"] == "succeeded"
    assert shown["request_id"] == ORDER
    assert [row["operation"] for row in activity if row["request_id"] == ORDER] == ["vm.create"]
    written = events(service.getvalue(), ORDER)
    assert written["request.answered"]["operation"] == "vm.create"
    assert written["task.ended"]["task_id"] == task["id"]
    assert events(log_of_agent, ORDER)["operation.ended"]["op"] == "vm.create"

    assert refused.status_code == 409, refused.text
    refusal = refused.headers["X-Request-Id"]
    assert refused.json()["error"]["details"]["request_id"] == refusal
    assert events(service.getvalue(), refusal)["request.answered"]["status"] == 409

    assert told.code != 0
    typed = told.err.splitlines()[-1].removeprefix("     request ")
    assert events(service.getvalue(), typed)["request.answered"]["status"] == 404
