"""One machine on one node, its consoles served over a real socket, with a gateway whose guests the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from trio_websocket import WebSocketConnection, open_websocket_url

from svc.controller.machines import consoles
from svc.controller.realm import REALM
from svc.controller.services import Controller
from svc.identity.authenticate import Authentication
from svc.registry.registry import Registry
from svc.service.controller.machine_consoles import MachineConsoles
from svc_actors.controller.machines.consoles import ConsoleOpen
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database
from svc_common.errors import not_ready
from svc_console import Consoles, add_console_routes
from svc_http.app import create_app

STANDING_SECONDS = 0.02
PING_SECONDS = 0.05


ORIGIN = "https://controller.test"
"""Where the pages come from; what the socket is asked under is the sender's to choose."""


@dataclass
class FakeGateway:
    """A node whose guests' ends of the streams are in `guests`, in the order in which they were opened."""

    online: bool = True
    guest_is_on: bool = True
    opened: list[ConsoleOpen] = field(default_factory=list)
    guests: list[trio.SocketStream] = field(default_factory=list)

    def is_online(self, node_id: UUID) -> bool:
        return self.online

    async def open_stream(
        self, node_id: UUID, operation: Callable[[str], ConsoleOpen], *, timeout: float
    ) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self.guest_is_on:
            raise not_ready("the guest is not running")
        near, far = trio.socket.socketpair()
        self.opened.append(operation("token"))
        self.guests.append(trio.SocketStream(far))
        return trio.SocketStream(near)


@dataclass
class ConsoleHarness:
    database: Database
    gateway: FakeGateway
    consoles: Consoles
    url: str
    vm_id: UUID
    node_id: UUID
    project_id: UUID
    shutdown: trio.Event

    async def person(self, role: str = "customer", *, member: bool = True) -> UUID:
        user_id: UUID = await self.database.fetchval(
            "INSERT INTO users (email, name, role) VALUES ($1, 'Ada', $2) RETURNING id",
            f"{uuid4().hex}@example.com",
            role,
        )
        if member:
            await self.database.execute("INSERT INTO project_members VALUES ($1, $2)", self.project_id, user_id)
        return user_id

    async def session(self, user_id: UUID) -> str:
        """A browser session; gives its cookie."""
        cookie = new_secret()
        await self.database.execute(
            "INSERT INTO sessions (token_hash, user_id, expires_at) VALUES ($1, $2, now() + interval '1 hour')",
            fingerprint(cookie),
            user_id,
        )
        return cookie

    async def token(self, user_id: UUID) -> str:
        token = new_secret("svcvm_")
        await self.database.execute(
            """INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes)
               VALUES ($1, $2, $3, 'test', '{write}')""",
            fingerprint(token),
            token[-4:],
            user_id,
        )
        return token

    async def asked(
        self, *, cookie: str | None = None, token: str | None = None, kind: str = "serial"
    ) -> httpx.Response:
        """POST /vms/{id}/console, from a page with a cookie or a program with a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {"Origin": self.origin, "X-Service-Request": "1"}
        if cookie:
            headers["Cookie"] = f"svcvm_session={cookie}"
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60) as client:
            return await client.post(f"/api/v1/vms/{self.vm_id}/console", json={"kind": kind})

    async def ticket(self, *, cookie: str | None = None, token: str | None = None, kind: str = "serial") -> str:
        answer = await self.asked(cookie=cookie, token=token, kind=kind)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["url"])

    def socket(
        self, path: str, *, cookie: str | None = None, origin: str | None = None
    ) -> AbstractAsyncContextManager[WebSocketConnection]:
        headers = [(b"Cookie", f"svcvm_session={cookie}".encode())] if cookie else []
        if origin:
            headers.append((b"Origin", origin.encode()))
        return open_websocket_url(self.url.replace("http", "ws", 1) + path, extra_headers=headers)

    @property
    def origin(self) -> str:
        return ORIGIN

    async def settled(self, *, open_consoles: int) -> None:
        """Return once that many consoles are open."""
        with trio.fail_after(60):
            while sum((self.consoles.statistics().vnc, self.consoles.statistics().serial)) != open_consoles:
                await trio.sleep(0.005)


@asynccontextmanager
async def open_consoles(database: Database) -> AsyncIterator[ConsoleHarness]:
    project_id: UUID = await database.fetchval("INSERT INTO projects (name) VALUES ('p') RETURNING id")
    location_id = await database.fetchval("INSERT INTO locations (name) VALUES ('here') RETURNING id")
    node_id: UUID = await database.fetchval(
        "INSERT INTO nodes (name, location_id, state, host_uuid) VALUES ('n', $1, 'online', $2) RETURNING id",
        location_id,
        uuid4(),
    )
    image_id = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
           VALUES ('i', 'i', 'linux', 'd', '1', 'u', 'qcow2', 'file', true) RETURNING id"""
    )
    vm_id: UUID = await database.fetchval(
        """INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                            access_mode)
           VALUES ('web', 'web', $1, $2, $3, 1, 64, 1, 'running', 'user_sudo') RETURNING id""",
        project_id,
        node_id,
        image_id,
    )
    gateway = FakeGateway()
    services = cast(Controller, SimpleNamespace(database=database, gateway=gateway))
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.accesslog = None
    config.websocket_ping_interval = PING_SECONDS
    config.keep_alive_timeout = 5 * PING_SECONDS
    async with trio.open_nursery() as nursery:
        app = create_app(
            Registry(consoles.operations, REALM),
            services,
            authenticator=Authentication(database, REALM),
            origins=(ORIGIN,),
        )
        shutdown = trio.Event()
        counted = add_console_routes(
            app,
            MachineConsoles(database, gateway),
            session_cookie=REALM.session_cookie,
            origins=(ORIGIN,),
            shutdown=shutdown,
            standing_seconds=STANDING_SECONDS,
        )
        (url,) = await nursery.start(serve, app, config)
        yield ConsoleHarness(database, gateway, counted, url, vm_id, node_id, project_id, shutdown)
        nursery.cancel_scope.cancel()
