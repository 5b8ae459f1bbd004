"""Calls of operations as the registry makes them, without HTTP: role and scope checked, then the handler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.controller.services import Controller
from svc.registry.downloads import Downloads
from svc.registry.operation import Context, Effects
from svc.registry.principal import Principal, Role
from svc.registry.registry import Registry, authorise
from svc_actors.store import Caller, Database, Via
from tests.support.machine_service import Service

REGISTRY: Registry[Controller] = controller_registry()


class Api:
    """One caller's view of a service."""

    def __init__(self, service: Service, principal: Principal, data_dir: Path = Path("/")) -> None:
        self.principal = principal
        self.effects = Effects()
        self._services = cast(
            Controller,
            _Services(
                config=ControllerConfig(data_dir=data_dir, public_host="localhost"),
                database=service.database,
                actors=service.actors,
                gateway=service.gateway,
                tasks=service.tasks,
                sealer=service.sealer,
                windows_passwords=service.passwords,
                downloads=Downloads(),
                realm=REGISTRY.realm,
            ),
        )

    async def __call__(self, name: str, /, **values: object) -> Any:
        return await self._call(name, values, None)

    async def upload(self, name: str, chunks: AsyncIterator[bytes], /, **values: object) -> Any:
        return await self._call(name, values, chunks)

    async def _call(self, name: str, values: dict[str, object], upload: AsyncIterator[bytes] | None) -> Any:
        operation = REGISTRY[name]
        authorise(operation, self.principal, REGISTRY.realm)
        self.effects = Effects()
        caller = Caller(
            actor_id=self.principal.user_id,
            actor=self.principal.display,
            role=self.principal.role.value if self.principal.role else "",
            via=Via.TOKEN,
            token_id=self.principal.token_id,
            request_id=str(uuid4()),
            operation=name,
        )
        context = Context(
            self.principal, caller, self._services, self.effects, response=operation.response, upload=upload
        )
        return await operation.handler(context, operation.request.model_validate(values))


class _Services:
    def __init__(self, **services: object) -> None:
        self.__dict__.update(services)

    person_added = Controller.person_added


async def person(database: Database, role: Role, *, projects: tuple[UUID, ...] = ()) -> Principal:
    """Somebody who is signed in, a member of these projects."""
    email = f"{role.value}-{uuid4().hex[:8]}@example.com"
    user_id: UUID = await database.fetchval(
        "INSERT INTO users (email, name, role) VALUES ($1, $2, $3) RETURNING id", email, role.value, role.value
    )
    for project in projects:
        await database.execute("INSERT INTO project_members (project_id, user_id) VALUES ($1, $2)", project, user_id)
    return Principal(user_id=user_id, email=email, role=role, scopes=None, session_id=uuid4())
