"""Controllers and agents of different releases: what they agree on, and what is said where they cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_nodeagent.protocol import (
    DOWN,
    PROTOCOL_VERSION,
    DomainState,
    FailureCode,
    OperationId,
    Versions,
    VmForceStop,
    VmStart,
    Welcome,
    encode,
)
from tests.support.gateway import BRISK, GatewayHarness, NodeOnDisk, create, open_rig, until

BEFORE = Versions(PROTOCOL_VERSION - 1, PROTOCOL_VERSION - 1)
LATER = Versions(PROTOCOL_VERSION, PROTOCOL_VERSION + 1)
TOO_NEW = Versions(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2)


class Unnamed(Versions):
    """An agent from before versions were named: it offers none."""

    @property
    def names(self) -> tuple[str, ...]:
        return ()


async def orders_run(rig: GatewayHarness, node: NodeOnDisk) -> None:
    await rig.until_online(node.node_id)
    creation = create()
    await rig.gateway.perform(node.node_id, OperationId(f"{uuid4()}:create"), creation, timeout=10)
    stop = VmForceStop(vm_id=creation.machine.vm_id)

    result = await rig.gateway.perform(node.node_id, OperationId(f"{uuid4()}:stop"), stop, timeout=10)

    assert getattr(result, "state", None) is DomainState.STOPPED


@pytest.mark.parametrize(
    ("agent", "controller", "agreed"),
    [
        (BEFORE, None, BEFORE.newest),
        (Unnamed(BEFORE.oldest, BEFORE.newest), None, None),
        (None, BEFORE, BEFORE.newest),
        (LATER, None, PROTOCOL_VERSION),
        (None, LATER, PROTOCOL_VERSION),
        (LATER, BEFORE, None),
    ],
)
async def test_ends_of_different_releases_agree_on_the_newest_that_both_speak(
    database: Database, tmp_path: Path, agent: Versions | None, controller: Versions | None, agreed: int | None
) -> None:
    spoken = Versions(PROTOCOL_VERSION - 1, PROTOCOL_VERSION)
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()
        await rig.stop_gateway()
        await rig.start_gateway(controller or spoken)

        async with node.running(versions=agent or spoken):
            if agreed is None:
                await until(lambda: rig.heard.refused)
            else:
                await orders_run(rig, node)
                assert [hello.protocol for hello in rig.heard.hellos] == [agreed]


@pytest.mark.parametrize(
    ("agent", "remedy"), [(TOO_NEW, "Upgrade the controller"), (Versions(1, 2), "Install the agent")]
)
async def test_an_agent_that_cannot_be_spoken_to_is_told_both_versions_and_what_to_do(
    database: Database, tmp_path: Path, agent: Versions, remedy: str
) -> None:
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()

        async with node.running(BRISK, agent) as running:
            await until(lambda: rig.heard.refused and running.offline_reason)

            (_, reason), *_ = rig.heard.refused
            assert f"speaks protocol {agent}" in reason
            assert f"speaks {PROTOCOL_VERSION - 1} to {PROTOCOL_VERSION}" in reason
            assert remedy in reason
            assert running.offline_reason is not None
            assert reason in running.offline_reason
            assert not rig.gateway.is_online(node.node_id)


async def test_what_an_older_agent_cannot_know_is_refused_and_not_sent(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VmForceStop, "facts", replace(VmForceStop.facts, since=PROTOCOL_VERSION))
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()

        async with node.running(versions=BEFORE):
            await rig.until_online(node.node_id)
            stop = VmForceStop(vm_id=uuid4())
            with pytest.raises(OperationFailed) as refused:
                await rig.gateway.perform(node.node_id, OperationId("stop"), stop, timeout=10)

            assert refused.value.code is FailureCode.UNSUPPORTED
            assert (
                f"needs protocol {PROTOCOL_VERSION}, the agent speaks {PROTOCOL_VERSION - 1}" in refused.value.message
            )
            assert "Upgrade the node's agent" in (refused.value.hint or "")
        assert node.host.performed == []


async def test_what_waits_for_a_node_is_refused_when_its_agent_turns_out_to_be_older(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VmStart, "facts", replace(VmStart.facts, since=PROTOCOL_VERSION))
    async with open_rig(database, tmp_path) as rig, trio.open_nursery() as nursery:
        node = await rig.new_node()
        codes: list[FailureCode] = []

        async def order() -> None:
            start = VmStart(vm_id=uuid4(), network=create().machine.network)
            try:
                await rig.gateway.perform(node.node_id, OperationId("start"), start, timeout=15)
            except OperationFailed as refused:
                codes.append(refused.code)

        nursery.start_soon(order)
        async with node.running(versions=BEFORE):
            await until(lambda: codes)

        assert codes == [FailureCode.UNSUPPORTED]


def test_a_field_is_left_out_for_a_peer_that_cannot_know_it() -> None:
    welcome = Welcome(
        protocol=PROTOCOL_VERSION,
        node_id=uuid4(),
        heartbeat_seconds=5.0,
        controller_time=datetime.now(UTC),
        controller="1.0",
    )
    before = 3  # the field is of version 4

    assert '"controller":"1.0"' in encode(welcome, PROTOCOL_VERSION)
    assert '"controller"' not in encode(welcome, before)
    assert DOWN.validate_json(encode(welcome, before)) == welcome.model_copy(update={"controller": None})
