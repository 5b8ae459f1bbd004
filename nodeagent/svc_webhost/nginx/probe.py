"""Checks whether a host is served as it should be, with a request like a visitor's.

The path is that of a challenge that does not exist: nginx answers it itself, whatever serves the site.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Final

import trio

from svc_webhost.nginx.model import PROBE, Certificate, SiteServer
from svc_webhost.nginx.render import Ports

PROBE_SECONDS: Final = 2.0
"""For one exchange with a server on the same machine."""
_ADDRESS: Final = "127.0.0.1"


def fingerprint(certificate: Certificate) -> str:
    """SHA-256, in hex, of the site's own certificate, the first of the chain. Blocks. Raises `ValueError`."""
    try:
        text = Path(certificate.chain).read_text()
        first = text[: text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[first.index(ssl.PEM_HEADER) :])).hexdigest()
    except (OSError, ValueError) as error:
        raise ValueError(f"the certificate cannot be read: {error}") from error


async def problem_of(site: SiteServer, ports: Ports, own: str | None, of_previews: str | None) -> str | None:
    """What is wrong with the serving of its hosts. `own` is the fingerprint of its certificate, `of_previews` that of
    its previews'; None: there is none."""
    for host in site.hosts:
        if not await _answers(host, ports.http):
            return f"{host} does not answer by HTTP"
        shown = await _shown_certificate(host, ports.https)
        expected = of_previews if host in site.previews else own
        if shown != expected:
            if expected is None:
                return f"{host} answers by HTTPS and has no certificate"
            return f"{host} does not answer by HTTPS" if shown is None else f"{host} presents another certificate"
    return None


async def _answers(host: str, port: int) -> bool:
    """nginx closes the connection of an unknown host without an answer."""
    with trio.move_on_after(PROBE_SECONDS):
        try:
            async with await trio.open_tcp_stream(_ADDRESS, port) as stream:
                await stream.send_all(f"HEAD {PROBE} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return (await stream.receive_some(64)).startswith(b"HTTP/1.1 ")
        except (OSError, trio.BrokenResourceError):
            return False
    return False


async def _shown_certificate(host: str, port: int) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # TLS need not verify the certificate: only the shown one is returned, and visitors decide whether to trust its
    # issuer.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with trio.move_on_after(PROBE_SECONDS):
        try:
            async with await trio.open_tcp_stream(_ADDRESS, port) as plain:
                stream = trio.SSLStream(plain, context, server_hostname=host, https_compatible=True)
                await stream.do_handshake()
                return hashlib.sha256(stream.getpeercert(binary_form=True)).hexdigest()
        except (OSError, trio.BrokenResourceError):
            return None
    return None
