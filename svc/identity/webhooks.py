"""The parts of webhook operations that all services share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from svc.registry.shapes import Shape
from svc_actors.webhooks.receivers import LONGEST_URL

SELECT_DELIVERIES: Final = """
SELECT d.id, d.endpoint_id, d.event_id, v.event, d.status, d.attempts, d.created_at, d.attempted_at,
       d.next_attempt_at, d.duration_ms, d.response_status, d.error
FROM webhook_deliveries AS d JOIN webhook_events AS v ON v.id = d.event_id"""

Url = Annotated[
    str,
    Field(min_length=9, max_length=LONGEST_URL),
    Shape(r"[!-~]*", "an https:// URL of printable ASCII without spaces"),
]
