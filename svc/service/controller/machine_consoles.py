"""The controller's machines as consoles that svc_console can serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import trio

from svc_actors.controller.machines.consoles import ConsoleAccess, ConsoleOpen, Grant, console_access, redeem
from svc_actors.store import Database
from svc_console.source import Refusal

_REFUSALS = {
    ConsoleAccess.GOOD: None,
    ConsoleAccess.SIGNED_OUT: Refusal.SIGNED_OUT,
    ConsoleAccess.MACHINE_GONE: Refusal.MACHINE_GONE,
    ConsoleAccess.MACHINE_STOPPED: Refusal.MACHINE_STOPPED,
}


class GatewayStreams(Protocol):
    """The parts of the node gateway that a console needs."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def open_stream(
        self, node_id: UUID, operation: Callable[[str], ConsoleOpen], *, timeout: float
    ) -> trio.abc.Stream: ...


@dataclass(frozen=True)
class MachineConsole:
    database: Database
    gateway: GatewayStreams
    grant: Grant
    node_id: UUID

    @property
    def kind(self) -> str:
        return self.grant.kind.value

    @property
    def holder(self) -> UUID:
        return self.grant.holder.user_id

    @property
    def reachable(self) -> bool:
        return self.gateway.is_online(self.node_id)

    async def refusal(self) -> Refusal | None:
        return _REFUSALS[await console_access(self.database, self.grant)]

    async def open(self, *, timeout: float) -> trio.abc.Stream:
        grant = self.grant
        return await self.gateway.open_stream(
            self.node_id,
            lambda token: ConsoleOpen(vm_id=grant.vm_id, kind=grant.kind, stream_token=token),
            timeout=timeout,
        )


@dataclass(frozen=True)
class MachineConsoles:
    database: Database
    gateway: GatewayStreams

    async def redeem(self, ticket: str, *, session_cookie: str | None) -> MachineConsole | None:
        grant = await redeem(self.database, ticket, session_cookie=session_cookie)
        if grant is None:
            return None
        node_id: UUID = await self.database.fetchval("SELECT node_id FROM vms WHERE id = $1", grant.vm_id)
        return MachineConsole(self.database, self.gateway, grant, node_id)
