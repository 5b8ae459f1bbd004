"""Collisions of transactions, where a test needs one at a certain place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from svc_actors.store import Collision


def collide_once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """Have the first call of a function, which is within a transaction, end as one that the server undid for another
    does. Which calls were made since."""
    real: Callable[..., Awaitable[object]] = getattr(module, name)
    calls: list[str] = []

    async def call(*arguments: Any, **named: Any) -> object:
        calls.append(name)
        if len(calls) == 1:
            raise Collision("deadlock detected")
        return await real(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls
