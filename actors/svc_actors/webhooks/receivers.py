"""Receivers of deliveries: validates their URLs and sends one POST.

Invariants:
- nothing is sent without TLS and a verified certificate, or to an address that `svc_common.outbound` refuses;
- nothing is sent to a place that the URL does not name: redirects are not followed;
- one deadline covers resolving, connecting and answering.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

import httpcore
import trio

from svc_actors.webhooks.delivery_states import Answered, Outcome, Unanswered
from svc_common.errors import ServiceError, wrong_field
from svc_common.outbound import AddressRefused, Outbound, VettedNetwork

DEADLINE: Final = 15.0
"""Seconds for an attempt."""
LONGEST_URL: Final = 2000
_VETTING_SECONDS: Final = 10.0
_MOST_ANSWER_BYTES: Final = 16384
"""How much of a response body is read to reuse the connection; after a longer one the connection is closed."""
_ANSWER_BODY_SECONDS: Final = 2.0

_URL: Final = re.compile(
    r"https://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>(?:/[!-~]*|\?[!-~]*)?)",
    re.IGNORECASE,
)
"""No credentials, no fragment, no backslash: programs disagree about how to parse them."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""If the last label has this form, resolvers parse the whole name as an IPv4 address in one of its historical
notations."""


@dataclass(frozen=True)
class ReceiverUrl:
    """`host` is a name in lower case, or an address without brackets."""

    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> ReceiverUrl:
        """Parse a receiver's URL. Raises ValueError, which says what is wrong with it."""
        if not url.lower().startswith("https://"):
            raise ValueError("must start with https://")
        found = _URL.fullmatch(url)
        if found is None or len(url) > LONGEST_URL or "#" in url or "\\" in url:
            raise ValueError(
                f"must be https://host[:port]/path of at most {LONGEST_URL} characters, without credentials or fragment"
            )
        port = int(found["port"] or 443)
        if not 0 < port < 65536:
            raise ValueError(f"there is no port {port}")
        target = found["target"]
        return cls(_host(found["host"].lower()), port, target if target.startswith("/") else f"/{target}")

    @property
    def target_url(self) -> httpcore.URL:
        return httpcore.URL(scheme="https", host=self.host, port=self.port, target=self.target)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise ValueError(f"{text} is no IPv6 address") from None
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ip_address(text))
        except ValueError:
            raise ValueError(f"{text} is neither a name nor an address such as 198.51.100.7") from None
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text} is not a host name")
    return text


class Receivers:
    """Connects to receivers. `authorities`: trusted roots for their certificates; the system's by default."""

    def __init__(self, outbound: Outbound, authorities: Path | None = None) -> None:
        self._outbound = outbound
        self._authorities = authorities

    async def vet(self, url: str) -> None:
        """Raise `invalid`, about the request's `url`, if nothing would be delivered to it."""
        try:
            receiver = ReceiverUrl.parse(url)
            with trio.fail_after(_VETTING_SECONDS):
                await self._outbound.addresses(receiver.host, receiver.port)
        except (ValueError, AddressRefused) as error:
            raise wrong_field("url", str(error)) from None
        except (OSError, trio.TooSlowError) as error:
            raise _without_address(url, error) from None

    @asynccontextmanager
    async def open(self, connections: int) -> AsyncIterator[Sender]:
        """A sender that keeps up to `connections` open for the length of the block."""
        async with httpcore.AsyncConnectionPool(
            ssl_context=self._tls,
            max_connections=connections,
            network_backend=VettedNetwork(self._outbound),
        ) as pool:
            yield Sender(pool)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._authorities)


class Sender:
    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Send `body` and return the outcome, within `DEADLINE`."""
        status: int | None = None
        try:
            with trio.move_on_after(DEADLINE):
                receiver = ReceiverUrl.parse(url)
                fields = [("Host", receiver.authority), *headers.items()]
                async with self._pool.stream("POST", receiver.target_url, headers=fields, content=body) as answer:
                    status = answer.status
                    await _read_shortly(answer)
                    return Answered(status)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            if status is None:
                return Unanswered(_said(error))
        except (AddressRefused, ssl.SSLError, OSError, ValueError) as error:
            if status is None:
                return Unanswered(str(error))
        return Unanswered(f"no answer within {DEADLINE:g} seconds") if status is None else Answered(status)


async def _read_shortly(answer: httpcore.Response) -> None:
    """Read a short body so that the connection can be reused; the status alone decides the outcome."""
    read = 0
    with trio.move_on_after(_ANSWER_BODY_SECONDS):
        async for chunk in answer.aiter_stream():
            read += len(chunk)
            if read > _MOST_ANSWER_BYTES:
                return


def _said(error: BaseException) -> str:
    """The root cause of a failed connection: `ConnectError` alone says too little."""
    said = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        said = str(cause) or said
        # The pool raises `from None`, so the cause may be only in the context.
        inner = cause.__cause__ or cause.__context__
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else inner
    return said


def _without_address(url: str, error: Exception) -> ServiceError:
    host = ReceiverUrl.parse(url).host
    said = error.strerror if isinstance(error, OSError) else None  # its text starts with a number
    why = "the resolver does not answer" if isinstance(error, trio.TooSlowError) else said or str(error)
    return wrong_field("url", f"{host} has no address: {why}", hint="Webhooks are sent to a name that resolves.")
