"""What is done again and again for the data of sites."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from svc.service.panel.site_data import start_site_data
from svc_webhost.databases import EngineKind


async def test_each_engine_is_looked_at_by_itself() -> None:
    """One whose look takes long keeps no look from the other."""
    repeated: dict[str, Callable[[], Awaitable[object]]] = {}
    looked: list[EngineKind] = []

    async def end_greedy(kind: EngineKind) -> None:
        looked.append(kind)

    loops = SimpleNamespace(repeat_from_now=lambda name, seconds, work: repeated.update({name: work}))
    data: Any = SimpleNamespace(
        databases=SimpleNamespace(resume=None, end_greedy=end_greedy),
        transfers=SimpleNamespace(sweep=None),
        undoing=SimpleNamespace(round=None),
        backups=SimpleNamespace(rounds=dict),
    )

    start_site_data(cast(Any, loops), data)
    for name, work in repeated.items():
        if name.startswith("memory of database sessions"):
            await work()
            looked.append(EngineKind.MARIADB if "mariadb" in name else EngineKind.POSTGRESQL)

    assert looked == [EngineKind.MARIADB, EngineKind.MARIADB, EngineKind.POSTGRESQL, EngineKind.POSTGRESQL]
