"""The table of statuses: complete, drawn as it is, and with nothing that claims more than was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.controller.machines.states import (
    MOVES,
    IllegalMove,
    MachineStatus,
    Observation,
    Order,
    diagram,
    move,
    observe,
)
from svc_nodeagent.protocol import DomainState

PAGE = Path(__file__).parents[3] / "docs" / "machine-states.md"
AT_REST = {MachineStatus.RUNNING, MachineStatus.STOPPED, MachineStatus.FAILED}


def test_the_picture_in_the_documentation_is_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()


def test_only_the_hosts_word_leads_to_running_and_stopped() -> None:
    for moves in MOVES.values():
        for event, target in moves.items():
            if target in (MachineStatus.RUNNING, MachineStatus.STOPPED):
                assert isinstance(event, Observation)


def test_every_status_can_be_reached_and_every_one_but_deleted_can_be_left() -> None:
    reached = {MachineStatus.CREATING} | {target for moves in MOVES.values() for target in moves.values()}
    assert reached == set(MachineStatus) == set(MOVES)
    for status, moves in MOVES.items():
        assert bool(set(moves.values()) - {status}) is (status is not MachineStatus.DELETED)


def test_the_hosts_word_is_understood_in_every_status() -> None:
    for status in set(MachineStatus) - {MachineStatus.DELETED}:
        for observation in (Observation.RUNNING, Observation.STOPPED, Observation.LOST):
            assert move(status, observation) in MachineStatus


@pytest.mark.parametrize("status", sorted(set(MachineStatus) - AT_REST))
def test_a_machine_under_way_takes_no_order_but_a_forced_stop(status: MachineStatus) -> None:
    for order in set(Order) - {Order.FORCE_STOP}:
        with pytest.raises(IllegalMove):
            move(status, order)


def test_a_guest_on_its_way_off_is_no_word_yet() -> None:
    assert observe(DomainState.SHUTTING_DOWN) is None
    assert {observe(state) for state in set(DomainState) - {DomainState.SHUTTING_DOWN}} == {
        Observation.RUNNING,
        Observation.STOPPED,
        Observation.LOST,
    }
