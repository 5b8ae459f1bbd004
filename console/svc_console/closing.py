"""The close codes of a console's websocket, which tell the page or program at the other end why it ended and what to
do.

Codes 4000 to 4999 are left to applications (RFC 6455, section 7.4.2); the last three digits follow HTTP's.
"""

from __future__ import annotations

from dataclasses import dataclass

from svc_console.relay import Ending
from svc_console.source import Refusal


@dataclass(frozen=True)
class Close:
    """`reason` is at most 123 bytes, the most that a close frame carries."""

    code: int
    reason: str


STOPPING = Close(1001, "The service is stopping: try again with a new ticket.")
NOT_BINARY = Close(1003, "A console takes binary messages only.")
TICKET_REFUSED = Close(4401, "This ticket is spent, expired or not yours: ask for a new one.")
SIGNED_OUT = Close(4403, "The session or token this console was opened with has ended.")
MACHINE_GONE = Close(4404, "The machine was deleted.")
GUEST_ENDED = Close(4409, "The machine's console has ended: it was stopped or restarted.")
TOO_MANY = Close(4429, "This account has the maximum number of consoles open: close one of them.")
NODE_UNAVAILABLE = Close(4503, "The machine's node cannot be reached: try again with a new ticket.")
INPUT_STALLED = Close(4504, "The machine took no input for a minute: open the console again with a new ticket.")

ENDINGS: dict[Ending, Close] = {
    Ending.GUEST_ENDED: GUEST_ENDED,
    Ending.INPUT_STALLED: INPUT_STALLED,
    Ending.NOT_BINARY: NOT_BINARY,
}

REFUSALS: dict[Refusal, Close] = {
    Refusal.SIGNED_OUT: SIGNED_OUT,
    Refusal.MACHINE_GONE: MACHINE_GONE,
    Refusal.MACHINE_STOPPED: GUEST_ENDED,
}
