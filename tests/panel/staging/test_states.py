"""The table of a staging copy's states."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.panel.staging.states import (
    MOVES,
    IllegalStagingMove,
    StagingEnd,
    StagingMove,
    StagingOrder,
    StagingStatus,
    diagram,
    move,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "staging.md"


def test_the_page_draws_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()


@pytest.mark.parametrize("status", StagingStatus)
@pytest.mark.parametrize("by", [*StagingOrder, *StagingEnd])
def test_there_is_no_move_but_those_of_the_table(status: StagingStatus, by: StagingMove) -> None:
    if by in MOVES[status]:
        assert move(status, by) is MOVES[status][by]
    else:
        with pytest.raises(IllegalStagingMove):
            move(status, by)


def test_a_push_never_leaves_a_copy_that_cannot_be_used() -> None:
    ends = {*MOVES[StagingStatus.PUSHING].values(), *MOVES[StagingStatus.UNDOING].values()}

    assert ends - {StagingStatus.UNDOING} == {StagingStatus.READY}
