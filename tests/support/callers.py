"""Who asks, where a test is not about that."""

from __future__ import annotations

from typing import Final

from svc_actors.store.audit import Caller, Via

ADMINISTRATOR: Final = Caller(
    actor="admin@example.com",
    role="administrator",
    via=Via.TOKEN,
    request_id="test",
    operation="test",
)
