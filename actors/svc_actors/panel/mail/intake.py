"""Accepts the mail that programs of sites hand in (`svc_webhost.mail.sendmail`, which describes the conversation).

Invariants:
- the kernel says which account has connected (SO_PEERCRED), hence which site sends; nothing that the program says
  changes this;
- "accepted" is sent only once the message is on disk and its rows are committed. If a program that lost the answer
  hands a message in twice, it gets the first answer again;
- a message is handed in over one connection at a time, and is not replaced once it is accepted;
- lines of a message end with CRLF, and it has no other CR or LF and no NUL, whatever has connected: servers on the way
  that take such bytes for line ends would read further mails in the message (SMTP smuggling);
- the header From names no domain of another customer of this server, provided that the program reports the header
  truthfully;
- a connection lasts `MAIL_SECONDS` at most, a site has `MOST_OF_A_SITE` at a time and all sites `MOST`: a program that
  sends a byte a minute stops nobody but its own site;
- bytes are copied and counted, never parsed; the line before the message has bounds, and is refused unless it has
  exactly the required form.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID, uuid5

import structlog
import trio
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from svc_actors.panel.mail import queue
from svc_actors.panel.mail.holds import Hold, SiteMailSettings, TellOwner, hold_for_limit, mail_settings_of
from svc_actors.panel.mail.limits import counts_of, limits_of
from svc_actors.panel.mail.received import EndedError, LineEnds, LineEndsError, Received
from svc_actors.panel.mail.signing import Signatures, SigningData
from svc_actors.panel.mail.spool import Spool, SpoolError, SpoolFullError
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site, lock_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError
from svc_webhost.accounts import FIRST_UID
from svc_webhost.knot.names import to_ascii
from svc_webhost.mail.message import MOST_BYTES, MOST_RECIPIENTS

MOST_OF_A_SITE: Final = 4
MOST: Final = 64
MAIL_SECONDS: Final = 30.0
_BACKLOG: Final = 256
_CREDENTIALS: Final = struct.Struct("3i")
_UNAVAILABLE, _TEMPORARY, _NOT_PERMITTED = 69, 75, 77
"""Exit statuses of sendmail: see there."""

_PART: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = rf"^{_PART}(?:\.{_PART})*@(?:{_LABEL}\.)+{_LABEL}$"
Address = Annotated[str, StringConstraints(pattern=_ADDRESS, max_length=254, strict=True)]

log = structlog.get_logger(__name__)


class Order(BaseModel):
    """The line before the message."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
    bytes: Annotated[int, Field(gt=0, le=MOST_BYTES)]
    sender: Address | None
    recipients: Annotated[list[Address], Field(min_length=1, max_length=MOST_RECIPIENTS)]
    script: Annotated[str, StringConstraints(max_length=300)] | None
    from_domain: Annotated[str, StringConstraints(max_length=254)]
    signing: SigningData | None


@dataclass(frozen=True)
class Refusal:
    text: str
    exit: int
    hold: Hold | None = None
    """The hold that this mail has caused."""


class _BusyError(Exception):
    """The message is being handed in over another connection."""


class Intake:
    """`relay`: whether this server has a relay; without one all mail is refused."""

    def __init__(
        self,
        database: Database,
        path: Path,
        spool: Spool,
        *,
        signatures: Signatures,
        relay: bool,
        tell_owner: TellOwner,
    ) -> None:
        self._database = database
        self._path = path
        self._spool = spool
        self._signatures = signatures
        self._relay = relay
        self._tell_owner = tell_owner
        self._connections: Counter[int] = Counter()
        self._under_way: set[UUID] = set()

    async def run(self) -> None:
        """Accept until cancelled. Raises `OSError` if the socket cannot be bound."""
        listener = await trio.to_thread.run_sync(self._bound)
        with listener:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        connection, _ = await listener.accept()
                    except OSError as error:
                        # All descriptors are in use, for instance: programs try again meanwhile.
                        log.warning("site_mail.accept_failed", error=str(error))
                        await trio.sleep(0.5)
                        continue
                    nursery.start_soon(self._serve, connection)

    def _bound(self) -> trio.socket.SocketType:
        """A socket that every account may connect to. Bound by another name first: no moment without one."""
        self._spool.prepare()
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(str(new))
            os.chmod(new, 0o666)  # noqa: S103 - the account that connects is looked at
            bound.listen(_BACKLOG)
            new.rename(self._path)
        except BaseException:
            bound.close()
            raise
        return trio.socket.from_stdlib_socket(bound)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        with connection:
            uid = _peer_of(connection)
            if self._connections[uid] >= MOST_OF_A_SITE or self._connections.total() >= MOST:
                with trio.move_on_after(1), suppress(OSError):
                    await _say(connection, {"busy": True})
                return
            self._connections[uid] += 1
            try:
                with trio.move_on_after(MAIL_SECONDS):
                    await self._answer(connection, uid)
            except (OSError, EndedError):
                # The program has gone; without an answer it hands the message in again.
                pass
            finally:
                self._connections[uid] -= 1
                # This drops the entries that are 0, which a Counter would otherwise keep.
                self._connections += Counter()

    async def _answer(self, connection: trio.socket.SocketType, uid: int) -> None:
        try:
            refusal = await self._conversation(connection, uid)
        except _BusyError:
            await _say(connection, {"busy": True})
            return
        except LineEndsError:
            refusal = Refusal("the message has a line that does not end with CRLF, or NUL bytes", _UNAVAILABLE)
        except SpoolFullError:
            refusal = _no_room()
        except SpoolError as error:
            log.error("site_mail.not_stored", error=str(error))
            refusal = Refusal("the server cannot store mail at the moment; nothing was sent", _TEMPORARY)
        except ServiceError as error:
            refusal = Refusal(f"the panel cannot take mail at the moment: {error.message}", _TEMPORARY)
        if refusal is None:
            await _say(connection, {"accepted": True})
        else:
            await _say(connection, {"refused": refusal.text, "exit": refusal.exit})

    async def _conversation(self, connection: trio.socket.SocketType, uid: int) -> Refusal | None:
        async with self._database.transaction() as tx:
            site = await _site_of(tx, uid)
            if site is None:
                return Refusal("no site of this server has this account; nothing was sent", _NOT_PERMITTED)
            refusal = await self._gate(tx, site)
        if refusal is not None:
            return refusal
        await _say(connection, {"domain": site.domain, "keep": site.staging_of is not None})
        lines = Received(connection)
        try:
            order = Order.model_validate_json(await lines.line())
        except ValidationError:
            return Refusal("the panel does not understand the order of this program; nothing was sent", _UNAVAILABLE)
        # The id is the program's, so it says nothing about messages of other sites.
        message = uuid5(site.id, order.id)
        if message in self._under_way:
            raise _BusyError
        self._under_way.add(message)
        try:
            return await self._receive(lines, site, order, message)
        finally:
            self._under_way.discard(message)

    async def _receive(self, lines: Received, site: SiteRow, order: Order, message: UUID) -> Refusal | None:
        if await queue.is_accepted(self._database, message):
            return None
        ends = LineEnds(order.bytes)
        await self._spool.write(message, order.bytes, lambda most: ends.checked(lines.some(most)))
        refusal = await self._database.transact(partial(self._accept, site=site, order=order, message=message))
        if refusal is not None:
            await self._spool.remove([message])
        if refusal is not None and refusal.hold is not None:
            log.warning("site_mail.held", site=str(site.id), for_good=refusal.hold.until is None)
        return refusal

    async def _accept(self, tx: Transaction, *, site: SiteRow, order: Order, message: UUID) -> Refusal | None:
        """Decide, and write the rows. The lock of the site's row makes its mails count one after the other."""
        current = await lock_site(tx, site.id)
        if await queue.is_accepted(tx, message):
            # The message was accepted already, over a connection that ended during the commit.
            return None
        if (refusal := await self._gate(tx, current)) is not None:
            return refusal
        if current.staging_of is not None:
            return Refusal("mail of a staging copy is kept in the copy; nothing was sent", _NOT_PERMITTED)
        if await _is_of_another_customer(tx, current, order.from_domain):
            return Refusal(
                f"the address in From is of {order.from_domain}, a domain of another customer of this server; nothing "
                "was sent. Use an address of the site's own domain, and Reply-To for others.",
                _UNAVAILABLE,
            )
        number = len(set(order.recipients))
        limits, counts = await limits_of(tx, site.id), await counts_of(tx, site.id)
        if not limits.per_hour or not limits.per_day:
            return Refusal(f"{site.domain} may not send mail on this server; nothing was sent", _NOT_PERMITTED)
        script = _script(order.script)
        if counts.hour + number > limits.per_hour or counts.day + number > limits.per_day:
            hold = await hold_for_limit(
                tx, current, limits, counts, script=script, number=number, tell_owner=self._tell_owner
            )
            return _held(current, hold, caused=True)
        mails, size = await queue.queued_of(tx, site.id)
        if mails + number > queue.MOST_QUEUED:
            return Refusal(f"{queue.MOST_QUEUED} mails of {site.domain} are queued; try again later", _TEMPORARY)
        if size + order.bytes > queue.MOST_QUEUED_BYTES:
            most = queue.MOST_QUEUED_BYTES >> 20
            return Refusal(f"{most} MiB of mail of {site.domain} are queued; try again later", _TEMPORARY)
        mail = queue.NewSiteMail(
            message=message,
            site_id=site.id,
            sender=await _envelope_sender(tx, current, order.sender),
            recipients=list(dict.fromkeys(order.recipients)),
            script=script,
            bytes=order.bytes,
            signature=await self._signatures.signature_for(tx, site.id, order.from_domain, order.signing),
        )
        await queue.add(tx, mail)
        return None

    async def _gate(self, tx: Transaction, site: SiteRow) -> Refusal | None:
        """Why the site may send no mail at all now."""
        if site.status in (SiteStatus.SUSPENDED, SiteStatus.DELETING):
            return Refusal(f"{site.domain} is {site.status}: it sends no mail; nothing was sent", _NOT_PERMITTED)
        if site.staging_of is not None:
            return None
        if not self._relay:
            return Refusal(
                "this server sends no mail, as no relay is configured; nothing was sent. Ask the provider.",
                _UNAVAILABLE,
            )
        settings = await mail_settings_of(tx, site.id)
        return _switched_off(site, settings) or (None if self._spool.has_room() else _no_room())


def _switched_off(site: SiteRow, settings: SiteMailSettings) -> Refusal | None:
    if not settings.enabled:
        text = f"the mail of {site.domain} is switched off; nothing was sent. Ask the provider."
        return Refusal(text, _NOT_PERMITTED)
    return None if settings.hold is None else _held(site, settings.hold)


def _held(site: SiteRow, hold: Hold, *, caused: bool = False) -> Refusal:
    end = (
        "until it is released on the page of the site's mail"
        if hold.until is None
        else f"until {hold.until:%Y-%m-%d %H:%M} UTC"
    )
    text = f"the mail of {site.domain} is held {end}: {hold.reason}. Nothing was sent."
    return Refusal(text, _NOT_PERMITTED if hold.until is None else _TEMPORARY, hold if caused else None)


def _no_room() -> Refusal:
    return Refusal("the server's disk is nearly full; nothing was sent. Try again later.", _TEMPORARY)


async def _site_of(tx: Transaction, uid: int) -> SiteRow | None:
    number = uid - FIRST_UID
    if not 0 < number < 2**31:
        return None
    row = await tx.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE number = $1", number)
    return None if row is None else as_site(row)


async def _envelope_sender(tx: Transaction, site: SiteRow, wanted: str | None) -> str:
    """Where bounces go: the sender that the program gives, if its domain is a name of the site or the registrable
    domain of one, which belongs to the same customer."""
    if wanted is not None:
        domain = wanted.rpartition("@")[2].lower()
        own = await tx.fetchval(
            "SELECT EXISTS (SELECT FROM site_domains WHERE site_id = $1 AND $2 IN (name, registrable))", site.id, domain
        )
        if own:
            return wanted
    return f"noreply@{site.domain}"


async def _is_of_another_customer(tx: Transaction, site: SiteRow, from_domain: str) -> bool:
    """Whether the domain, or one above it, is of a site of somebody else. A registrable domain is one customer's."""
    try:
        labels = to_ascii(from_domain).split(".")
    except ValueError:
        return False
    return bool(
        await tx.fetchval(
            """SELECT EXISTS (SELECT FROM site_domains JOIN sites ON sites.id = site_id
                              WHERE registrable = ANY($1::text[]) AND owner_id <> $2)""",
            [".".join(labels[at:]) for at in range(len(labels))],
            site.owner_id,
        )
    )


def _script(told: str | None) -> str | None:
    """What a site says of its program, in one line that can be shown."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in told or "").strip()
    return plain or None


def _peer_of(connection: trio.socket.SocketType) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    return int(uid)


async def _say(connection: trio.socket.SocketType, answer: dict[str, object]) -> None:
    left = memoryview(json.dumps(answer).encode() + b"\n")
    while left:
        left = left[await connection.send(left) :]
