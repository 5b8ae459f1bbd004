"""What the relay needs from the service whose consoles it serves."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol
from uuid import UUID

import trio


class Refusal(StrEnum):
    """Why a console may not be opened, or why an open one must be closed."""

    SIGNED_OUT = "signed_out"
    """The session or token has ended, or the person is suspended or may no longer see the machine."""
    MACHINE_GONE = "machine_gone"
    MACHINE_STOPPED = "machine_stopped"


class Console(Protocol):
    """The console that a redeemed ticket opens."""

    @property
    def kind(self) -> str: ...

    @property
    def holder(self) -> UUID:
        """The person who opened it."""
        ...

    @property
    def reachable(self) -> bool:
        """Whether the machine's node is online now."""
        ...

    async def refusal(self) -> Refusal | None:
        """Why the console must be closed; None while it may stay open. Raises `ServiceError` if that cannot be
        checked."""
        ...

    async def open(self, *, timeout: float) -> trio.abc.Stream:
        """The stream to the guest. Raises `ServiceError`: `not_found` or `not_ready` if the guest is off."""
        ...


class ConsoleSource(Protocol):
    async def redeem(self, ticket: str, *, session_cookie: str | None) -> Console | None:
        """Use up a ticket and return its console; None if the ticket is invalid."""
        ...
