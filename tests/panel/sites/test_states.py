"""The table of a site's statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.panel.sites.states import (
    MOVES,
    IllegalTransition,
    SiteEnd,
    SiteMove,
    SiteOrder,
    SiteStatus,
    diagram,
    move,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sites.md"


def test_the_page_draws_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()


def test_every_status_has_its_moves() -> None:
    assert set(MOVES) == set(SiteStatus)


@pytest.mark.parametrize("status", SiteStatus)
@pytest.mark.parametrize("by", [*SiteOrder, *SiteEnd])
def test_there_is_no_move_but_those_of_the_table(status: SiteStatus, by: SiteMove) -> None:
    if by in MOVES[status]:
        assert move(status, by) is MOVES[status][by]
    else:
        with pytest.raises(IllegalTransition):
            move(status, by)


def test_whatever_a_site_is_it_can_be_deleted_or_is_about_to_end_what_it_does() -> None:
    for status, moves in MOVES.items():
        assert SiteOrder.DELETE in moves or SiteEnd.BROKEN in moves, status
