"""How a node joins: a one-time token, the script that a new host runs, and the exchange that makes the host a node.

The host trusts only the command that came with the token. The command pins the public key of the server from which it
downloads the script, and the script accepts the controller's authority only if its SHA-256 is the fingerprint in the
command.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from importlib import resources
from typing import Annotated
from uuid import UUID

import trio
from pydantic import Field

from svc.controller.nodes.package import agent_package
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import (
    Context,
    Empty,
    Model,
    Presentation,
    Request,
    Route,
)
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import NAME, Shape
from svc_actors.controller.nodes.enrolment import (
    create_bootstrap,
    delete_bootstrap,
    enrol,
    pending_bootstraps,
)
from svc_actors.controller.nodes.records import NodeMode
from svc_actors.store import Transaction

operations = Operations[Controller]()

NodeName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Shape(
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
        "lowercase letters, digits, dots and hyphens, with a letter or digit at both ends",
    ),
]


class NodeBootstrapModel(Model):
    """A node that may join until `expires_at`."""

    id: UUID
    name: str
    location_id: UUID
    mode: NodeMode
    created_at: datetime
    expires_at: datetime


class NodeBootstrapCreated(NodeBootstrapModel):
    """`token` and `command` are shown only once. `command` is run as root on the new host; `fingerprint` is the SHA-256
    of the controller's authority."""

    token: str
    fingerprint: str
    command: str


class NodeBootstrapRequest(Request):
    """Without `location_id`: the location named `default`. The host of an observed node is read and never changed."""

    name: NodeName
    location_id: UUID | None = None
    mode: NodeMode = NodeMode.MANAGED


class BootstrapRequest(Request):
    id: UUID


class NodeEnrolRequest(Request):
    """Sent by the agent. `csr` is a PEM request signed with the P-256 key that stays on the host."""

    token: Annotated[str, Field(max_length=200, repr=False)]
    csr: Annotated[str, Field(max_length=8_000)]
    hostname: Annotated[str, Field(min_length=1, max_length=253), NAME]
    host_uuid: UUID


class NodeEnrolled(Model):
    """The node's certificate and the controller's authority, PEM, and where the gateway is."""

    node_id: UUID
    certificate: str
    authority: str
    gateway_host: str
    gateway_port: int


@operations.declare(
    "node.bootstrap",
    "Create a one-time token that a new node joins with",
    Route.post("/nodes/bootstrap", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("node", "add"),
    positional=("name",),
)
async def bootstrap_node(context: Context[Controller], request: NodeBootstrapRequest) -> NodeBootstrapCreated:
    services = context.services
    async with services.database.transaction() as tx:
        bootstrap, token = await create_bootstrap(
            tx, context.caller, name=request.name, location_id=request.location_id, mode=request.mode
        )
    fingerprint = services.authority.fingerprint
    return NodeBootstrapCreated(
        **vars(bootstrap), token=token, fingerprint=fingerprint, command=_command(services, token, fingerprint)
    )


@operations.declare(
    "node.bootstraps",
    "List the bootstrap tokens that are not used yet",
    Route.get("/nodes/bootstrap"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("node", "pending"),
    columns=("name", "mode", "created=created_at", "expires=expires_at", "id"),
)
async def list_bootstraps(context: Context[Controller], request: Empty) -> list[NodeBootstrapModel]:
    return [NodeBootstrapModel(**vars(bootstrap)) for bootstrap in await pending_bootstraps(context.services.database)]


@operations.declare(
    "node.withdraw",
    "Revoke an unused bootstrap token",
    Route.delete("/nodes/bootstrap/{id}", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def withdraw_bootstrap(context: Context[Controller], request: BootstrapRequest) -> None:

    async def work(tx: Transaction) -> None:
        await delete_bootstrap(tx, context.caller, request.id)

    await context.services.database.transact(work)


@operations.declare(
    "node.enrol",
    "Exchange a bootstrap token and a signing request for a node's certificate (for agents)",
    Route.post("/nodes/enrol"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    hidden=True,
)
async def enrol_node(context: Context[Controller], request: NodeEnrolRequest) -> NodeEnrolled:
    services = context.services
    enrolled = await enrol(
        services.database,
        services.authority,
        token=request.token,
        csr=request.csr,
        hostname=request.hostname,
        host_uuid=request.host_uuid,
        address=context.caller.address,
    )
    return NodeEnrolled(
        node_id=enrolled.node_id,
        certificate=enrolled.certificate.pem,
        authority=services.authority.certificate_pem,
        gateway_host=services.config.public_host,
        gateway_port=services.gateway.port,
    )


@operations.declare(
    "node.script",
    "The script that turns a host into a node",
    Route.get("/get-node.sh"),
    access=Access.PUBLIC,
    scope=Scope.READ,
    hidden=True,
    presentation=Presentation.SHELL_SCRIPT,
)
async def node_script(context: Context[Controller], request: Empty) -> str:
    await trio.lowlevel.checkpoint()
    return resources.files("svc.controller.nodes").joinpath("get-node.sh").read_text()


@operations.declare(
    "node.authority",
    "The controller's certificate authority, to be compared with the fingerprint",
    Route.get("/nodes/authority"),
    access=Access.PUBLIC,
    scope=Scope.READ,
    hidden=True,
    presentation=Presentation.FILE,
)
async def node_authority(context: Context[Controller], request: Empty) -> bytes:
    await trio.lowlevel.checkpoint()
    return context.services.authority.certificate_pem.encode()


@operations.declare(
    "node.package",
    "The node agent as a Python wheel",
    Route.get("/nodes/agent.whl"),
    access=Access.PUBLIC,
    scope=Scope.READ,
    hidden=True,
    presentation=Presentation.FILE,
)
async def node_package(context: Context[Controller], request: Empty) -> bytes:
    return await trio.to_thread.run_sync(agent_package)


def _command(services: Controller, token: str, fingerprint: str) -> str:
    """The command for a new host. It calls curl with -k, because the host does not trust the controller's authority
    yet; curl still verifies the pinned key. It requests the server name for nodes, for which the controller shows a
    certificate of its own authority."""
    config = services.config
    url, host, port = config.public_url, config.url_host, config.api_port
    certificate = services.authority.server_certificate(config.data_dir, config.public_host)
    name = certificate.node_name
    environment = {"SVC_CONTROLLER": url, "SVC_TOKEN": token, "SVC_FINGERPRINT": fingerprint}
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    curl = ["curl", "-fsSk", "--pinnedpubkey", f"sha256//{certificate.pin}"]
    curl += ["--connect-to", f"{name}:{port}:{host}:{port}"]
    return f"{shlex.join(curl)} https://{name}:{port}/api/v1/get-node.sh | {settings} sh"
