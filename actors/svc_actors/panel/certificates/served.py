"""Checks that visitors are shown the certificate that was installed. A renewal that succeeds and is not served is worse
than one that fails.

The check is a handshake with this server, after every installation and once an hour; an alert reports a difference.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_actors.alerts import set_alert
from svc_actors.panel.certificates.records import write_seen
from svc_actors.store import Database, Transaction

HANDSHAKE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class VisitorAddress:
    """This server's address for visitors, as the server itself reaches it."""

    address: str
    https_port: int


async def compare_served(database: Database, serving: VisitorAddress) -> None:
    """Check some of the certificates that were not checked since their installation, or for an hour."""
    rows = await database.fetch(
        """
        SELECT s.id, s.domain, c.fingerprint
        FROM site_certificates AS c JOIN sites AS s ON s.id = c.site_id
        WHERE s.status IN ('active', 'suspended') AND s.served >= s.wanted
          AND (c.checked_at IS NULL OR c.checked_at < now() - interval '1 hour')
        ORDER BY c.checked_at NULLS FIRST LIMIT 20
        """
    )
    async with trio.open_nursery() as nursery:
        for row in rows:
            nursery.start_soon(_compare, database, serving, row["id"], row["domain"], row["fingerprint"])


async def _compare(database: Database, serving: VisitorAddress, site_id: UUID, domain: str, fingerprint: str) -> None:
    seen = await shown_at(serving, domain)
    words = "the handshake failed." if seen is None else f"they get one with the SHA-256 {seen}."
    message = f"Visitors of {domain} do not get the certificate that was installed for it: {words}"

    async def work(tx: Transaction) -> None:
        # The site's row is locked, so that a deletion, which closes the alert, comes either before this or after it.
        there = await tx.fetchval(
            "SELECT true FROM sites WHERE id = $1 AND status IN ('active', 'suspended') FOR SHARE", site_id
        )
        if there:
            await write_seen(tx, site_id, fingerprint, seen == fingerprint)
            await set_alert(tx, key=served_alert(site_id), message=None if seen == fingerprint else message)

    await database.transact(work)


def served_alert(site_id: UUID) -> str:
    return f"certificate-served:{site_id}"


async def shown_at(serving: VisitorAddress, name: str) -> str | None:
    """SHA-256, in hex, of the certificate that visitors of `name` are shown; None if the handshake fails."""
    context = ssl.create_default_context()
    # TLS need not verify the certificate: it is compared with the installed one.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with trio.move_on_after(HANDSHAKE_SECONDS):
        try:
            stream = await trio.open_tcp_stream(serving.address, serving.https_port)
            async with trio.SSLStream(stream, context, server_hostname=name, https_compatible=True) as tls:
                await tls.do_handshake()
                shown = tls.getpeercert(binary_form=True)
            return hashlib.sha256(shown).hexdigest() if shown else None
        except (OSError, trio.BrokenResourceError, ssl.SSLError):
            return None
    return None
