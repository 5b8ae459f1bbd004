"""A controller with its services and no web server, asked by its handlers, and nodes that join it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID, uuid4

import httpx
import trio

from svc.controller.config import ControllerConfig
from svc.controller.nodes import joining as nodes_joining
from svc.controller.nodes import nodes
from svc.controller.nodes.models import NodeDetail
from svc.controller.services import Controller, ControllerLoop
from svc.registry.operation import Context
from svc.registry.principal import Principal, Role
from svc.registry.scopes import Scope
from svc.service.controller.services import open_services
from svc_actors.controller.nodes.records import NodeMode, NodeState
from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.enrol import enrol_over
from tests.support.callers import ADMINISTRATOR
from tests.support.gateway import NodeOnDisk

R = TypeVar("R")
A = TypeVar("A")
SEEN: Final[tuple[ControllerLoop, ...]] = ("node watch",)
PRINCIPAL = Principal(uuid4(), "admin@example.com", Role.ADMINISTRATOR, frozenset(Scope))


@dataclass
class NodeApiHarness:
    services: Controller
    folder: Path
    made: int = field(default=0)

    @property
    def context(self) -> Context[Controller]:
        return Context(principal=PRINCIPAL, caller=ADMINISTRATOR, services=self.services)

    async def call(self, handler: Callable[[Context[Controller], A], Awaitable[R]], request: A) -> R:
        return await handler(self.context, request)

    async def bootstrap(self, name: str = "node-1", mode: NodeMode = NodeMode.MANAGED) -> str:
        request = nodes_joining.NodeBootstrapRequest(name=name, mode=mode)
        return (await self.call(nodes_joining.bootstrap_node, request)).token

    async def join(self, token: str, *, host: UUID | None = None, folder: AgentFolder | None = None) -> NodeOnDisk:
        """As the agent does, with the handler behind an HTTP transport in place of a server."""
        self.made += 1
        folder = folder or AgentFolder(self.folder / f"agent-{self.made}")

        async def answer(request: httpx.Request) -> httpx.Response:
            try:
                wanted = nodes_joining.NodeEnrolRequest.model_validate_json(request.content)
                enrolled = await self.call(nodes_joining.enrol_node, wanted)
            except ServiceError as error:
                return httpx.Response(409, json={"error": {"code": error.code, "message": error.message}})
            return httpx.Response(200, content=enrolled.model_dump_json())

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://controller") as client:
            enrolment = await enrol_over(client, folder, token=token, hostname="host", host=host or uuid4())
        return NodeOnDisk(enrolment.node_id, folder)

    async def detail(self, node_id: UUID) -> NodeDetail:
        return await self.call(nodes.show_node, nodes.NodeRequest(id=node_id))

    async def until_state(self, node_id: UUID, state: NodeState) -> None:
        with trio.fail_after(60):
            while (await self.detail(node_id)).state is not state:
                await trio.sleep(0.02)

    async def count(self, sql: str, *arguments: object) -> int:
        return int(await self.services.database.fetchval(sql, *arguments))


@asynccontextmanager
async def open_site(
    database: Database, folder: Path, loops: Collection[ControllerLoop] = SEEN
) -> AsyncIterator[NodeApiHarness]:
    """Nodes are seen as they come and go; what else is looked after in the background, a test names."""
    config = ControllerConfig(
        data_dir=folder,
        public_host="localhost",
        bind_host="127.0.0.1",
        api_port=0,
        gateway_port=0,
        operations_port=0,
    )
    with trio.fail_after(60):
        async with open_services(config, database, enabled_loops=loops) as services:
            yield NodeApiHarness(services, folder)
