"""The HTTP side of the command line: one request, its retries, and its errors as `Failure`.

A read is tried again on 429, 502, 503, 504 and a lost connection. A write is tried again only where that cannot do the
work twice: when it was refused with 429, when no connection was made, or when it carries an idempotency key.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio

from svc.cli.failures import EXIT_BY_CODE, Exit, Failure
from svc.cli.profiles import Profile, tls_context
from svc_actors.errors import ErrorCode

API_PREFIX = "/api/v1"
_ATTEMPTS = 4
_RETRIED = {429, 502, 503, 504}


class Client:
    """A signed-in caller of one service. `Client.open` closes the connections at its end."""

    def __init__(self, profile: Profile, http: httpx.AsyncClient) -> None:
        self.profile = profile
        self._http = http

    @classmethod
    @asynccontextmanager
    async def open(cls, profile: Profile) -> AsyncIterator[Client]:
        headers = {"Accept": "application/json"}
        if profile.token:
            headers["Authorization"] = f"Bearer {profile.token}"
        timeout = httpx.Timeout(35.0, connect=10.0)
        async with httpx.AsyncClient(
            base_url=profile.url + API_PREFIX, verify=tls_context(profile), headers=headers, timeout=timeout
        ) as http:
            yield cls(profile, http)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON answer, or None for an empty one."""
        once_only = method != "GET" and not (body and body.get("idempotency_key"))
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS or content is not None
            try:
                response = await self._http.request(
                    method, path, params=query, json=body, content=content, headers=headers
                )
            except httpx.ConnectError as error:
                if last:
                    raise self._unreachable(error) from error
            except httpx.TransportError as error:
                if once_only or last:
                    raise self._unreachable(error) from error
            else:
                retried = response.status_code in _RETRIED and (not once_only or response.status_code == 429)
                if last or not retried:
                    return self._answer(response)
            await trio.sleep(_pause(attempt))
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def events(self, after: str | None = None) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        """The event stream as (kind, data) pairs."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        async with self._http.stream("GET", "/events", headers=headers, timeout=None) as response:
            if response.status_code != 200:
                await response.aread()
                self._answer(response)
            yield _parse_events(response)

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
            raise Failure(
                Exit.INTERNAL, f"{self.profile.url} answered {response.status_code} without saying why"
            ) from None
        hint = error.get("hint")
        if code is ErrorCode.UNAUTHENTICATED and not hint:
            hint = "sign in with `svc login`"
        raise Failure(EXIT_BY_CODE[code], _with_details(error), hint)

    def _unreachable(self, error: httpx.TransportError) -> Failure:
        reason = str(error) or type(error).__name__
        hint = "is the controller running, and is its certificate the one this profile trusts?"
        return Failure(Exit.UNAVAILABLE, f"cannot reach {self.profile.url}: {reason}", hint)


def _pause(attempt: int) -> float:
    return min(0.25 * 2.0**attempt, 4.0)


def _with_details(error: Mapping[str, Any]) -> str:
    details = error.get("details")
    if not details:
        return str(error["message"])
    return f"{error['message']} ({json.dumps(details, default=str)})"


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
