"""Retries the creation of a machine while the nodes that could take it are still connecting, instead of refusing it.

A node is arriving if its agent is connected but its first inventory is not processed yet, or if it joined a moment ago
and its agent is still probing the host. A creation does not wait for a node that is offline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from uuid import UUID

import trio

from svc.controller.services import Controller
from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.controller.nodes.records import NodeState
from svc_actors.controller.placement.refusals import NodesAway
from svc_actors.store import PositionLost, SlowReader, Subscription

T = TypeVar("T")

LONGEST_WAIT: Final = 25.0
"""Seconds. Less than clients wait for an answer (35 s on the command line), so that they get the reason of a
refusal."""

_JOINING_SECONDS: Final = 120.0
"""How long a node that has never connected counts as arriving."""


async def retry_when_nodes_arrive(
    services: Controller, create: Callable[[], Awaitable[T]], *, node_id: UUID | None, location_id: UUID | None
) -> T:
    """The result of `create`. If `create` raises `NodesAway` while a node is arriving, it is called again when a node
    comes online. The deadline limits only the waits between the calls: a call of `create` is never cancelled."""
    deadline = trio.current_time() + LONGEST_WAIT
    try:
        return await create()
    except NodesAway:
        if not await _on_their_way(services, node_id, location_id):
            raise
    async with services.events.subscribe(None) as events:
        while True:
            try:
                return await create()  # Tried at once, because a node may have come online before the subscription.
            except NodesAway:
                if not await _node_comes_online(events, deadline):
                    raise


async def _on_their_way(services: Controller, node_id: UUID | None, location_id: UUID | None) -> bool:
    return bool(
        await services.database.fetchval(
            """SELECT EXISTS (
                   SELECT FROM nodes
                   WHERE deleted_at IS NULL AND mode = 'managed' AND NOT maintenance AND state <> 'online'
                     AND ($1::uuid IS NULL OR id = $1) AND ($2::uuid IS NULL OR location_id = $2)
                     AND (id = ANY($3::uuid[])
                          OR state = 'pending' AND created_at > now() - make_interval(secs => $4)))""",
            node_id,
            location_id,
            services.gateway.online(),
            _JOINING_SECONDS,
        )
    )


async def _node_comes_online(events: Subscription, deadline: float) -> bool:
    with trio.CancelScope(deadline=deadline):
        try:
            async for event in events:
                if event.kind == ControllerEvent.NODE and event.payload["change"] == NodeState.ONLINE.value:
                    return True
        except (SlowReader, PositionLost):
            return False  # This subscription was too slow and has lost events, so the caller is asked to try again.
    return False
