"""The whole controller with people and machines in it, asked over ASGI; machines are records until a host joins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from svc.controller.config import ControllerConfig
from svc.controller.services import ControllerLoop
from svc.service.controller.services import open_services
from svc_actors.store import Database
from tests.support.harness import CheapPasswords, Client
from tests.support.identity import IdentityHarness, open_identity

HTTPS = {"direction": "ingress", "protocol": "tcp", "port_from": 443}


@dataclass
class SecurityGroupHarness:
    """`ada` and `eve` are customers with a project of their own; all four act by tokens."""

    world: IdentityHarness
    root: Client
    staff: Client
    ada: Client
    eve: Client
    projects: dict[str, UUID]
    image: UUID

    @property
    def database(self) -> Database:
        return self.world.database

    async def group(self, client: Client, name: str = "web", **values: object) -> dict[str, Any]:
        return made(await client.post("/security-groups", {"name": name} | values))

    async def rule(self, client: Client, group: dict[str, Any], **values: object) -> dict[str, Any]:
        return made(await client.post(f"/security-groups/{group['id']}/rules", HTTPS | values))

    async def machine(self, name: str = "m", *, owner: str = "ada", node: UUID | None = None) -> UUID:
        """A machine of somebody's project, as one that its host has built."""
        vm_id: UUID = await self.database.fetchval(
            """INSERT INTO vms (name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode,
                                built_at, node_id, net_applied)
               VALUES ($1, $1, $2, $3, 1, 256, 1, 'stopped', 'user_sudo', now(), $4, 1) RETURNING id""",
            name,
            self.projects[owner],
            self.image,
            node,
        )
        return vm_id

    async def put(self, client: Client, vm_id: UUID, groups: Iterable[dict[str, Any]]) -> httpx.Response:
        body = {"group_ids": [group["id"] for group in groups]}
        return await client.call("PUT", f"/vms/{vm_id}/security-groups", body)

    async def wanted(self, vm_id: UUID) -> int:
        """The generation of the machine's network that its host shall have."""
        return int(await self.database.fetchval("SELECT net_wanted FROM vms WHERE id = $1", vm_id))


def made(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@asynccontextmanager
async def open_place(
    database: Database, folder: Path, loops: Collection[ControllerLoop] = ()
) -> AsyncIterator[SecurityGroupHarness]:
    config = ControllerConfig(data_dir=folder, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=loops) as services,
        open_identity(database, services=services) as world,
    ):
        clients: dict[str, Client] = {}
        projects: dict[str, UUID] = {}
        for name, role in (("root", "administrator"), ("staff", "staff"), ("ada", "customer"), ("eve", "customer")):
            person = await world.person(f"{name}@example.org", role)
            clients[name] = world.program(await world.token(person))
            projects[name] = await database.fetchval(
                "SELECT project_id FROM project_members WHERE user_id = $1", person
            )
        image = await database.fetchval(
            """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
               VALUES ('i', 'I', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', true) RETURNING id"""
        )
        yield SecurityGroupHarness(world=world, projects=projects, image=image, **clients)
