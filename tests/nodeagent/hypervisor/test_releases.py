"""Which orders for a machine a release of its addresses supersedes: a creation that has not written its record, and no
other."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import DomainState, FailureCode, ReleaseResult, VmCreate
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, silent
from tests.nodeagent.hypervisor.test_remaking_interrupted import Node, OneGuest, nothing


async def test_a_creation_that_waits_for_its_image_gives_way_to_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would carry the addresses that the release has reported as free."""
    node, spec = Node(tmp_path, monkeypatch), machine(network(ADDRESS))
    answers: list[ReleaseResult] = []

    async def release_meanwhile(*_: object) -> None:
        answers.append(await node.machines.release(spec.vm_id, (ADDRESS,)))

    monkeypatch.setattr(node.images, "ensure", release_meanwhile)
    with pytest.raises(HostError) as superseded:
        await node.machines.create(VmCreate(machine=spec, image=image(b"demo")), silent)

    assert superseded.value.code is FailureCode.CANCELLED
    assert answers == [ReleaseResult(vm_id=spec.vm_id, removed=(ADDRESS,))]
    assert not node.folders.machine(spec.vm_id).exists()


async def test_a_reboot_is_completed_whatever_is_released_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch)
    vm_id = node.spec.vm_id
    monkeypatch.setattr(OneGuest, "tell_network", nothing, raising=False)

    async def release_meanwhile(percent: int, message: str) -> None:
        await node.machines.release(vm_id, (ADDRESS,))

    result = await node.machines.reboot(vm_id, 60.0, release_meanwhile)

    assert (result.state, node.guest.presses, node.guest.starts) == (DomainState.RUNNING, 1, 1)
    assert [nic.addresses for nic in node.record.network.nics] == [()]
