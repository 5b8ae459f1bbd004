"""What belongs to somebody else is, to a customer, not there: on every route, with every method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from svc.controller.config import ControllerConfig
from svc.registry.parameters import path_parameters
from svc.registry.principal import Access
from svc.service.controller.services import open_services
from svc_actors.store import Database
from tests.support.harness import CheapPasswords, said
from tests.support.identity import IdentityHarness, open_identity

CANARY = "canary-of-somebody-else"
BODIES: dict[str, dict[str, object]] = {
    "vm.delete": {"confirm": CANARY, "destroy_disks": True},
    "vm.detach_ip": {"ip": "192.0.2.1"},
    "vm.security_groups": {"group_ids": []},
    "volume.attach": {"vm_id": str(uuid4())},
    "volume.grow": {"size_gib": 2},
    "volume.delete": {"confirm": CANARY},
    "volume.update": {"name": "mine"},
    "security_group.add_rule": {"direction": "ingress", "protocol": "any"},
}
"""Of operations that would refuse an empty body before they look for the thing."""


@pytest.fixture
async def house(database: Database, tmp_path: Path) -> AsyncIterator[IdentityHarness]:
    """The whole controller, with a machine, a task of it and a key of Eve's."""
    config = ControllerConfig(data_dir=tmp_path, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=()) as services,
        open_identity(database, services=services) as world,
    ):
        yield world


async def belongings(house: IdentityHarness) -> dict[str, UUID]:
    """Ids of what is Eve's, by the first segment of the routes that lead to it."""
    eve = await house.person("eve@example.org")
    row = await house.database.fetchrow(
        """
        WITH project AS (INSERT INTO projects (name) VALUES ($1) RETURNING id),
        member AS (INSERT INTO project_members (project_id, user_id) SELECT id, $2 FROM project),
        key AS (
            INSERT INTO ssh_keys (user_id, name, public_key, fingerprint) VALUES ($2, $1, $1, $1) RETURNING id
        ),
        token AS (
            INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes)
            VALUES ('\\x00', 'xxxx', $2, $1, '{read}') RETURNING id
        ),
        image AS (
            INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
            VALUES ('i', 'I', 'linux', 'debian', '12', 'debian', 'qcow2', 'file', true) RETURNING id
        ),
        vm AS (
            INSERT INTO vms (name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode)
            SELECT $1, $1, project.id, image.id, 1, 1024, 10, 'stopped', 'user_sudo' FROM project, image RETURNING id
        ),
        task AS (
            INSERT INTO tasks (op, status, resource_kind, resource_id, resource_name, project_id, caller, deadline_at,
                               ended_at)
            SELECT 'vm.start', 'succeeded', 'vm', vm.id, $1, project.id, '{}', now(), now() FROM vm, project
            RETURNING id
        ),
        alert AS (
            INSERT INTO alerts (key, message, severity, resource_kind, resource_id, project_id, told)
            SELECT 'k', $1, 'warning', 'vm', vm.id::text, project.id, $1 FROM vm, project RETURNING id
        ),
        location AS (INSERT INTO locations (name) VALUES ('l') RETURNING id),
        node AS (
            INSERT INTO nodes (name, location_id, host_uuid) SELECT 'n', id, gen_random_uuid() FROM location
            RETURNING id
        ),
        volume AS (
            INSERT INTO volumes (name, project_id, node_id, size_gib, state)
            SELECT $1, project.id, node.id, 1, 'available' FROM project, node RETURNING id
        ),
        security_group AS (
            INSERT INTO security_groups (project_id, name) SELECT id, $1 FROM project RETURNING id
        ),
        rule AS (
            INSERT INTO security_group_rules (group_id, direction, action, protocol, note)
            SELECT id, 'ingress', 'accept', 'any', $1 FROM security_group
        )
        SELECT vm.id AS vms, task.id AS tasks, project.id AS projects, key.id AS "ssh-keys", token.id AS tokens,
               security_group.id AS "security-groups", alert.id AS alerts, volume.id AS volumes
        FROM vm, task, project, key, token, security_group, alert, volume
        """,
        CANARY,
        eve,
    )
    assert row is not None
    return dict(row)


async def test_a_foreign_id_and_an_absent_one_get_the_same_answer_on_every_route(house: IdentityHarness) -> None:
    ids = await belongings(house)
    await house.person("ada@example.org")
    ada = await house.signed_in("ada@example.org")
    about_one = [
        operation
        for operation in house.registry
        if operation.access is Access.SIGNED_IN and "{id}" in operation.route.path
    ]
    assert {operation.route.path.split("/")[1] for operation in about_one} == ids.keys()
    for operation in about_one:
        first = operation.route.path.split("/")[1]
        answers = []
        for chosen in (ids[first], uuid4()):
            path = operation.route.path.replace("{id}", str(chosen))
            for name in path_parameters(path):
                path = path.replace("{" + name + "}", str(uuid4()))
            answer = await ada.call(operation.route.method.value, path, BODIES.get(operation.name, {}))
            assert CANARY not in answer.text, operation.name
            answers.append((answer.status_code, said(answer)))
        assert answers[0] == answers[1], operation.name
        assert answers[0][0] in (400, 403, 404), operation.name
        assert answers[0][0] == 404 or operation.name not in BODIES, operation.name


async def test_no_list_of_a_customers_holds_anything_foreign(house: IdentityHarness) -> None:
    await belongings(house)
    await house.person("ada@example.org")
    ada = await house.signed_in("ada@example.org")
    for operation in house.registry:
        if (
            operation.route.method.value == "GET"
            and "{" not in operation.route.path
            and operation.name != "event.stream"
        ):
            query = f"?q={CANARY}" if "q" in operation.request.model_fields else ""
            answer = await ada.get(operation.route.path + query)
            assert CANARY not in answer.text, operation.name


async def test_an_administrator_sees_what_the_customer_did_not(house: IdentityHarness) -> None:
    ids = await belongings(house)
    root = house.program(await house.token(await house.person("root@example.org", "administrator")))
    for first in ("vms", "tasks", "projects", "volumes"):
        assert CANARY in (await root.get(f"/{first}/{ids[first]}")).text
