"""The HTTP side of the command line: one request, its retries, and its errors as `Failure`.

A read is retried on 429, 502, 503, 504 and a lost connection. A write is retried only if a retry cannot do the work
twice: after a 429, if no connection was made, or if the request has an idempotency key. A `Retry-After` of the service
is honoured, within reason.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio

from svc.cli.failures import EXIT_BY_CODE, Exit, Failure
from svc.cli.profiles import Profile, tls_context
from svc.cli.terminal import say
from svc_actors.retry_after import retry_after_seconds
from svc_common.errors import ErrorCode

API_PREFIX = "/api/v1"
_ATTEMPTS = 4
_RETRIED = {429, 502, 503, 504}
_LONGEST_PAUSE = 60.0
_WORTH_A_WORD = 2.0


class Client:
    """A signed-in caller of one service. `Client.open` closes the connections when its block ends."""

    def __init__(self, profile: Profile, http: httpx.AsyncClient) -> None:
        self.profile = profile
        self._http = http

    @classmethod
    @asynccontextmanager
    async def open(cls, profile: Profile) -> AsyncIterator[Client]:
        headers = {"Accept": "application/json"}
        if profile.token:
            if not profile.token.isascii() or any(character.isspace() for character in profile.token):
                raise Failure(Exit.INVALID, "the API token contains characters that no token has")
            headers["Authorization"] = f"Bearer {profile.token}"
        transport = (
            # Without TLS: loading the web's certificate authorities would take 30 ms of CPU.
            httpx.AsyncHTTPTransport(uds=profile.socket, verify=False)
            if profile.socket is not None
            else httpx.AsyncHTTPTransport(verify=tls_context(profile))
        )
        async with httpx.AsyncClient(
            base_url=profile.url + API_PREFIX,
            transport=transport,
            headers=headers,
            timeout=httpx.Timeout(35.0, connect=10.0),
        ) as http:
            yield cls(profile, http)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON answer, the text of an answer that is not JSON, or None for an empty one."""
        once_only = method != "GET" and not (body and body.get("idempotency_key"))
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS or content is not None
            pause = _pause(attempt)
            try:
                response = await self._http.request(
                    method, path, params=query, json=body, content=content, headers=headers
                )
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if last or certificate_refused(error):
                    raise self._unreachable(error) from error
            except httpx.TransportError as error:
                if once_only or last:
                    raise self._unreachable(error, sent=method != "GET") from error
            else:
                retried = response.status_code in _RETRIED and (not once_only or response.status_code == 429)
                wanted = retry_after_seconds(response.headers)
                if last or not retried or (wanted or 0.0) > _LONGEST_PAUSE:
                    return self._answer(response)
                pause = max(pause, wanted or 0.0)
            if pause >= _WORTH_A_WORD:
                say(f"{self.profile.url} is busy or away; trying again in {pause:.0f} s", style="dim")
            await trio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def cookie(self, ending: str) -> str | None:
        """`name=value` of the service's cookie whose name has this suffix."""
        kept = (f"{each.name}={each.value}" for each in self._http.cookies.jar if each.name.endswith(ending))
        return next(kept, None)

    async def download(self, path: str, query: Mapping[str, Any] | None = None) -> AsyncIterator[bytes]:
        """The chunks of a file."""
        try:
            async with self._http.stream("GET", path, params=query) as response:
                await self._checked(response)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def events(self, after: str | None = None) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        """The event stream as (kind, data) pairs; `data["id"]` is the event's position. The stream ends when the
        service ends it; a broken connection raises `Failure`."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        silence = httpx.Timeout(60.0, connect=10.0)  # the service sends a heartbeat every few seconds
        try:
            async with self._http.stream("GET", "/events", headers=headers, timeout=silence) as response:
                await self._checked(response)
                yield _parse_events(response)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _checked(self, response: httpx.Response) -> None:
        if not response.is_success:
            await response.aread()
            self._answer(response)

    def _answer(self, response: httpx.Response) -> Any:
        if response.is_success:
            if not response.content:
                return None
            kind = response.headers.get("content-type", "")
            return response.json() if kind.startswith("application/json") else response.text
        try:
            error = response.json()["error"]
            code = ErrorCode(error["code"])
        except (ValueError, KeyError, TypeError):
            what = f"{self.profile.url} answered {response.status_code}, but not as a controller or a panel does"
            raise Failure(Exit.INTERNAL, what, "is that the address of the controller?") from None
        hint = error.get("hint")
        if code is ErrorCode.UNAUTHENTICATED and (not hint or self.profile.token is None):
            hint = f"sign in with `svc login {self.profile.url}`"
            if self.profile.socket is not None:
                hint = "give another token; root needs none on the panel's server"
        raise Failure(
            EXIT_BY_CODE[code],
            str(error["message"]),
            hint,
            fields=_fields(error.get("details")),
            request_id=response.headers.get("x-request-id"),
        )

    def _unreachable(self, error: httpx.TransportError, *, sent: bool = False) -> Failure:
        if certificate_refused(error):
            trusted = "trusted by this profile" if self.profile.trusted else "trusted by this system"
            hint = f"if its certificate was renewed, sign in again: svc login {self.profile.url}"
            return Failure(Exit.UNAVAILABLE, f"the certificate of {self.profile.url} is not {trusted}", hint)
        reason = str(error) or type(error).__name__
        hint = "the connection was lost after the request was sent: check whether the change was made"
        if self.profile.socket is not None:
            what, running = f"cannot reach the core at {self.profile.socket}", "is the panel's core running?"
        else:
            what, running = f"cannot reach {self.profile.url}", "is the service running there?"
        return Failure(Exit.UNAVAILABLE, f"{what}: {reason}", hint if sent else running)


def certificate_refused(error: BaseException) -> bool:
    """Whether a connection failed because of the server's certificate."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _pause(attempt: int) -> float:
    return min(0.25 * 2.0**attempt, 4.0)


def _fields(details: Any) -> dict[str, str]:
    if not isinstance(details, Mapping) or not isinstance(details.get("fields"), list):
        return {}
    return {str(entry["field"]): str(entry["problem"]) for entry in details["fields"]}


async def _parse_events(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    kind, data = "message", ""
    async for line in response.aiter_lines():
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            yield kind, json.loads(data)
            kind, data = "message", ""
