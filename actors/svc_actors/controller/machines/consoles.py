"""Console tickets: each opens one console of one machine, once, within half a minute.

Invariants:

- a ticket is redeemed by deleting its row, so of any number of concurrent attempts one succeeds;
- a ticket issued to a browser session is accepted only together with that session's cookie; one issued to an API token
  may be passed on (a provider's own page shows its customer's console with it);
- an open console lasts only as long as the rights of its ticket: `console_access` says whether the session or token,
  the person and the machine still allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Queryable
from svc_nodeagent.protocol import ConsoleKind, ConsoleOpen

__all__ = [
    "OPENABLE",
    "TICKET_SECONDS",
    "ConsoleAccess",
    "ConsoleKind",
    "ConsoleOpen",
    "Grant",
    "Holder",
    "IssuedTicket",
    "SessionCredential",
    "TokenCredential",
    "console_access",
    "issue",
    "redeem",
]

TICKET_SECONDS = 30
_CLOCK_SLEW = 2.0

OPENABLE = frozenset({"running", "stopping", "rebooting"})
"""Statuses in which the machine has a running guest whose console can be shown."""


@dataclass(frozen=True)
class SessionCredential:
    id: UUID


@dataclass(frozen=True)
class TokenCredential:
    id: UUID


@dataclass(frozen=True)
class Holder:
    """The person a console belongs to, and the credential whose end closes it."""

    user_id: UUID
    credential: SessionCredential | TokenCredential


@dataclass(frozen=True)
class IssuedTicket:
    """`ticket` is shown once; the database has only its hash."""

    ticket: str
    expires_at: datetime


@dataclass(frozen=True)
class Grant:
    """The console that a redeemed ticket opens."""

    vm_id: UUID
    kind: ConsoleKind
    holder: Holder


class ConsoleAccess(StrEnum):
    """Whether a console may be open, and if not, why."""

    GOOD = "good"
    SIGNED_OUT = "signed_out"
    """The session or token of the person has ended, the person is suspended, or may no longer see the machine."""
    MACHINE_GONE = "machine_gone"
    MACHINE_STOPPED = "machine_stopped"


async def issue(store: Queryable, *, vm_id: UUID, kind: ConsoleKind, holder: Holder) -> IssuedTicket:
    """Create a ticket, in the transaction that audits it. Expired tickets are removed at the same time."""
    ticket = new_secret()
    await store.execute("DELETE FROM console_tickets WHERE expires_at < now()")
    session_id, token_id = _columns(holder)
    expires_at: datetime = await store.fetchval(
        """INSERT INTO console_tickets (ticket_hash, vm_id, kind, user_id, session_id, token_id, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7)) RETURNING expires_at""",
        fingerprint(ticket),
        vm_id,
        kind.value,
        holder.user_id,
        session_id,
        token_id,
        float(TICKET_SECONDS),
    )
    return IssuedTicket(ticket, expires_at)


async def redeem(store: Queryable, ticket: str, *, session_cookie: str | None) -> Grant | None:
    """Redeem a ticket. None if it was never issued, is spent or expired, or belongs to another browser's session."""
    row = await store.fetchrow(
        """DELETE FROM console_tickets AS ticket WHERE ticket.ticket_hash = $1
             AND (ticket.session_id IS NULL OR EXISTS (
                  SELECT FROM sessions WHERE sessions.id = ticket.session_id AND sessions.token_hash = $2))
           RETURNING vm_id, kind, user_id, session_id, token_id,
                     expires_at > now() AND expires_at <= now() + make_interval(secs => $3) AS fresh""",
        fingerprint(ticket),
        fingerprint(session_cookie) if session_cookie is not None else b"",
        # A clock that was set back must not extend a ticket.
        float(TICKET_SECONDS) + _CLOCK_SLEW,
    )
    if row is None or not row["fresh"]:
        return None
    credential = (
        SessionCredential(row["session_id"]) if row["session_id"] is not None else TokenCredential(row["token_id"])
    )
    return Grant(row["vm_id"], ConsoleKind(row["kind"]), Holder(row["user_id"], credential))


async def console_access(store: Queryable, grant: Grant) -> ConsoleAccess:
    session_id, token_id = _columns(grant.holder)
    row = await store.fetchrow(
        """SELECT vms.deleted_at IS NOT NULL AS deleted, vms.status,
                  person.suspended_at IS NULL
                  AND (EXISTS (SELECT FROM sessions WHERE id = $3 AND user_id = person.id AND expires_at > now())
                       OR EXISTS (SELECT FROM api_tokens WHERE id = $4 AND user_id = person.id
                                  AND (expires_at IS NULL OR expires_at > now())))
                  AND (person.role IN ('administrator', 'staff')
                       OR EXISTS (SELECT FROM project_members AS member
                                  WHERE member.project_id = vms.project_id AND member.user_id = person.id)) AS allowed
           FROM vms, users AS person WHERE vms.id = $1 AND person.id = $2""",
        grant.vm_id,
        grant.holder.user_id,
        session_id,
        token_id,
    )
    if row is None or not row["allowed"]:
        return ConsoleAccess.SIGNED_OUT
    if row["deleted"]:
        return ConsoleAccess.MACHINE_GONE
    return ConsoleAccess.GOOD if row["status"] in OPENABLE else ConsoleAccess.MACHINE_STOPPED


def _columns(holder: Holder) -> tuple[UUID | None, UUID | None]:
    match holder.credential:
        case SessionCredential(id=id):
            return id, None
        case TokenCredential(id=id):
            return None, id
