"""The controller's background loops, by their names in alerts and in the log; one watch may have several."""

from __future__ import annotations

from typing import Literal

from svc_actors.store import Loops, ServiceLoop

ControllerLoop = (
    ServiceLoop
    | Literal[
        "alert webhooks",
        "backups",
        "backups of machines",
        "certificate by ACME",
        "first boots of Windows",
        "machine watch",
        "network watch",
        "node watch",
        "power watch",
        "remains of moves",
        "service watch",
        "traffic watch",
    ]
)
ControllerLoops = Loops[ControllerLoop]
