"""A service's application in the process of a test, asked over ASGI by browsers and programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

import httpx
import trio
from argon2 import PasswordHasher

from svc.identity.passwords import Passwords
from svc.registry.realm import Realm
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database
from svc_http.app import App

PASSWORD = "Correct-Horse-42"


class WithPeople(Protocol):
    """What is asked of a service here."""

    @property
    def database(self) -> Database: ...

    @property
    def passwords(self) -> Passwords: ...


ServicesT = TypeVar("ServicesT", bound=WithPeople)


class CheapPasswords(Passwords):
    """Counts and compares like the real one, without its cost."""

    def __init__(self) -> None:
        super().__init__(parallel=2, hasher=PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))

    async def hash(self, password: str) -> str:
        self.hashed += 1
        return f"cheap:{password}"

    async def verify(self, stored: str | None, password: str) -> bool:
        self.hashed += 1
        await trio.lowlevel.checkpoint()
        return stored == f"cheap:{password}"


@dataclass
class Client:
    """A browser (it keeps cookies, and sends what the pages send) or a program with a token."""

    http: httpx.AsyncClient
    headers: dict[str, str]

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self.http.request(method, "/api/v1" + path, json=body, headers={**self.headers, **(headers or {})})

    async def get(self, path: str) -> httpx.Response:
        return await self.call("GET", path)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.call("POST", path, {} if body is None else body, headers=headers)

    async def patch(self, path: str, body: Any) -> httpx.Response:
        return await self.call("PATCH", path, body)

    async def delete(self, path: str, body: Any = None) -> httpx.Response:
        return await self.call("DELETE", path, body)

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get("svcvm_session")


def said(answer: httpx.Response) -> dict[str, Any]:
    """The error that was answered, without what is different each time."""
    error = dict(answer.json()["error"])
    details = {
        name: value for name, value in (error["details"] or {}).items() if name not in ("request_id", "retry_after")
    }
    return error | {"details": details}


@dataclass
class Harness(Generic[ServicesT]):
    """`origin` is where the browsers' pages come from."""

    app: App
    services: ServicesT
    realm: Realm
    origin: str
    clients: list[httpx.AsyncClient] = field(default_factory=list, kw_only=True)

    @property
    def database(self) -> Database:
        return self.services.database

    def browser(self, address: str = "192.0.2.1") -> Client:
        return Client(self._http(address), {"Origin": self.origin, "X-Service-Request": "1"})

    def program(self, token: str, address: str = "192.0.2.2") -> Client:
        return Client(self._http(address), {"Authorization": f"Bearer {token}"})

    async def person(self, email: str, role: str = "customer", *, password: str = PASSWORD) -> UUID:
        """A person, straight into the database."""
        stored = await self.services.passwords.hash(password)
        user_id: UUID = await self.database.fetchval(
            "INSERT INTO users (email, name, role, password_hash) VALUES ($1, $2, $3, $4) RETURNING id",
            email,
            email.partition("@")[0].title(),
            role,
            stored,
        )
        return user_id

    async def token(self, user_id: UUID, scopes: Iterable[str] = ("admin",)) -> str:
        token = new_secret(self.realm.token_prefix)
        await self.database.execute(
            "INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes) VALUES ($1, $2, $3, 'test', $4)",
            fingerprint(token),
            token[-4:],
            user_id,
            list(scopes),
        )
        return token

    async def audit(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch("SELECT * FROM audit ORDER BY id")]

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()

    def _http(self, address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=cast(Any, self.app), client=(address, 40000), raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url=self.origin)
        self.clients.append(client)
        return client
