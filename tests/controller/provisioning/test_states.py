"""The table of a service's states: as the specification has it, complete, and drawn as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.controller.provisioning.states import (
    MOVES,
    IllegalMove,
    Outcome,
    ServiceOrder,
    ServiceState,
    diagram,
    move,
)

PAGE = Path(__file__).parents[3] / "docs" / "provisioning.md"


def test_the_picture_in_the_documentation_is_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()


def test_provisioning_ends_as_the_specification_has_it() -> None:
    assert move(ServiceState.PROVISIONING, Outcome.BUILT) is ServiceState.ACTIVE
    assert move(ServiceState.PROVISIONING, Outcome.FAILED) is ServiceState.PROVISIONING_FAILED
    assert move(ServiceState.PROVISIONING_FAILED, ServiceOrder.RETRY) is ServiceState.PROVISIONING


def test_every_state_is_reached_and_only_terminated_is_never_left() -> None:
    reached = {ServiceState.PROVISIONING} | {target for moves in MOVES.values() for target in moves.values()}

    assert reached == set(ServiceState) == set(MOVES)
    for state, moves in MOVES.items():
        assert bool(set(moves.values()) - {state}) is (state is not ServiceState.TERMINATED)


@pytest.mark.parametrize("state", ServiceState)
def test_every_service_can_be_terminated_however_often(state: ServiceState) -> None:
    assert move(state, ServiceOrder.TERMINATE) is ServiceState.TERMINATED


@pytest.mark.parametrize("order", [ServiceOrder.SUSPEND, ServiceOrder.UNSUSPEND])
def test_a_service_without_a_machine_is_not_suspended_nor_put_back(order: ServiceOrder) -> None:
    for state in (ServiceState.PROVISIONING, ServiceState.PROVISIONING_FAILED, ServiceState.TERMINATED):
        with pytest.raises(IllegalMove):
            move(state, order)
