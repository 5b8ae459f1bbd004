"""How the panel's loops begin; what each of them does, other tests order by its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc.panel.services import PanelLoop
from svc_actors.store import Database
from tests.support.panel import open_panel

LEFT: Final[tuple[PanelLoop, ...]] = (
    "cron of WordPress",
    "databases to resume",
    "handovers of sites",
    "pushes to undo",
    "sites to resume",
    "zones",
)


async def test_what_an_earlier_core_may_have_left_is_looked_for_at_once(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, float] = {}

    async def keep_repeating(
        name: str, seconds: float, work: Callable[[], Awaitable[object]], *_: object, first_after: float | None = None
    ) -> None:
        begun[name] = seconds if first_after is None else first_after
        await trio.sleep_forever()

    monkeypatch.setattr("svc_actors.store.loops.keep_repeating", keep_repeating)
    async with open_panel(panel_database, tmp_path, loops=LEFT):
        await wait_all_tasks_blocked()

    assert begun == dict.fromkeys(LEFT, 0)
