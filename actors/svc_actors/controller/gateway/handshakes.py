"""The gateway's TLS: its own certificate, and the proof of which node dials in.

The certificate names the node, checked at the handshake and against its row. A connection whose certificate is not
valid is held open for two seconds and then closed, so an agent that retries in a loop costs no more than its socket.

Rejected: closing such a connection at once. A revoked agent reconnects as soon as its connection is closed, and each
handshake costs a signature.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.authority import Authority, Serial, ServerCertificate
from svc_nodeagent.protocol import STREAM_ALPN

_HANDSHAKE_SECONDS: Final = 15.0
_REFUSAL_SECONDS: Final = 2.0
# Each refused connection that is held open costs a file descriptor; further ones are closed at once.
_MOST_REFUSALS_HELD: Final = 256
_CERTIFICATE_CHECK_SECONDS: Final = 12 * 3600.0
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The cipher suites for TLS 1.2: forward secrecy and authenticated encryption, as at the API."""
log = structlog.get_logger(__name__)


class Handshakes:
    """`certificate` returns the server's certificate, renewed if that is due; it is called again twice a day."""

    def __init__(self, authority: Authority, certificate: Callable[[], ServerCertificate]) -> None:
        self._authority = authority
        self._certificate = certificate
        self._refusals = 0
        self.refused = 0
        """Connections refused since the start."""

    def context(self) -> ssl.SSLContext:
        certificate = self._certificate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_ciphers(_CIPHERS)
        context.load_cert_chain(certificate.chain, certificate.key)
        context.load_verify_locations(cadata=self._authority.certificate_pem)
        context.set_alpn_protocols(["http/1.1", STREAM_ALPN])
        # Session tickets are off: a resumed session would skip the certificate check. Agents reconnect so rarely that
        # full handshakes cost little.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        return context

    async def renew_own_certificate(self, context: ssl.SSLContext) -> None:
        while True:
            await trio.sleep(_CERTIFICATE_CHECK_SECONDS)
            try:
                certificate = self._certificate()
                context.load_cert_chain(certificate.chain, certificate.key)
            except OSError as error:
                # The gateway goes on with its current certificate, which is valid for weeks: a full disk, for example,
                # must not end the gateway.
                log.error("gateway.own_certificate_not_renewed", error=str(error))

    async def prove(self, tls: trio.SSLStream[trio.SocketStream]) -> tuple[UUID, Serial] | None:
        """The node and the serial of the certificate that it showed, or None. The handshake has verified the chain."""
        try:
            with trio.move_on_after(_HANDSHAKE_SECONDS) as handshake:
                await tls.do_handshake()
        except trio.BrokenResourceError as error:
            log.debug("gateway.handshake_failed", reason=str(error.__cause__))
            return None
        if handshake.cancelled_caught:
            return None
        shown = self._authority.read(tls.getpeercert() or {})
        if shown is None:
            return None
        # The certificate chain proves only that the authority once signed it; the row says whether it was revoked
        # since.
        node_id = await self._authority.identify(shown.serial, shown)
        return None if node_id is None else (node_id, shown.serial)

    async def refuse(self) -> None:
        """Keep a connection open for a moment before it is closed: that limits how often an agent reconnects."""
        self.refused += 1
        if self._refusals >= _MOST_REFUSALS_HELD:
            return
        self._refusals += 1
        try:
            await trio.sleep(_REFUSAL_SECONDS)
        finally:
            self._refusals -= 1
