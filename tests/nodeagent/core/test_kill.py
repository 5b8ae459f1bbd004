"""kill -9 of a real agent process at every point between two of its steps."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import trio

import svc_nodeagent
from svc_actors.store import Database
from svc_nodeagent.protocol import DeleteResult, OperationId, VmCreate, VmDelete
from tests.support.gateway import GatewayHarness, NodeOnDisk, create, open_rig

CORE = ("agent.py", "dispatch.py", "journal.py", "simulated.py")
_POINT = re.compile(r'fault_point\("([a-z._]+)"\)')


def points() -> list[str]:
    folder = Path(svc_nodeagent.__file__).parent
    found = {point for name in CORE for point in _POINT.findall((folder / name).read_text())}
    return sorted(point for point in found if "renewal" not in point)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("point", points())
async def test_an_agent_killed_at_any_point_ends_with_the_machine_once_and_every_result(
    database: Database, tmp_path: Path, point: str
) -> None:
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()
        operation = create()
        async with trio.open_nursery() as nursery:
            killed = trio.Event()
            nursery.start_soon(_supervise, node, point, killed)
            await rig.gateway.perform(node.node_id, OperationId("1:create"), operation, timeout=50)
            await rig.gateway.acknowledge(node.node_id, OperationId("1:create"))
            # The acknowledgement of the first is what some points wait for.
            await _delete_another(rig, node)
            await killed.wait()
            nursery.cancel_scope.cancel()
        state = json.loads((node.folder.path / "simulated.json").read_bytes())
    vm_id = str(operation.machine.vm_id)
    assert list(state["machines"]) == [vm_id]
    assert {kept: network["carried"] for kept, network in state["network"]["networks"].items()} == {vm_id: ["10.0.0.5"]}


async def _delete_another(rig: GatewayHarness, node: NodeOnDisk) -> None:
    other: VmCreate = create()
    await rig.gateway.perform(node.node_id, OperationId("2:create"), other, timeout=50)
    delete = VmDelete(vm_id=other.machine.vm_id, destroy_disks=True)
    result = await rig.gateway.perform(node.node_id, OperationId("3:delete"), delete, timeout=50)
    assert isinstance(result, DeleteResult)


async def _supervise(node: NodeOnDisk, point: str, killed: trio.Event) -> None:
    """As systemd does: start it again. Only the first process meets its fault point."""
    command = [sys.executable, "-m", "svc_nodeagent.cli", "run", "--simulated", "--data", str(node.folder.path)]
    first = await trio.run_process(
        command, env={**os.environ, "SVC_FAULT_POINT": point}, check=False, capture_stderr=True
    )
    assert first.returncode == -9, first.stderr.decode()[-2000:]
    killed.set()
    await trio.run_process(command, capture_stderr=True)
