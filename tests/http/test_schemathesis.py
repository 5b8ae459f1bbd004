"""Whatever the OpenAPI document allows, and much that it does not, is answered within it and never with a 5xx (R16).

The whole controller serves over HTTPS in a thread with its own Trio; the requests come from schemathesis, half of them
about things that there are, and what reproduces a failure is printed. That the service refuses a well-formed order for
a reason of its own (a password that holds the account's name) is no finding.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis
import pytest
import requests
import trio

from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.controller.realm import REALM
from svc.identity.authenticate import Authentication
from svc.registry.openapi import document
from svc.registry.operation import Method, Presentation
from svc.service.controller.services import open_services
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database
from svc_http.app import create_app
from svc_http.certificates import Certificates
from svc_http.server import serve_https
from tests.conftest import Cluster
from tests.support.addresses import make_nics, make_pool, take
from tests.support.certificates import self_signed
from tests.support.machine_service import Fleet, make_node

EXAMPLES = 3
FULL_EXAMPLES = 12
"""Of each operation, with --full."""
REGISTRY = controller_registry()
STREAMS = {operation.name for operation in REGISTRY if operation.presentation is Presentation.EVENT_STREAM}


@dataclass(frozen=True)
class Running:
    url: str
    token: str
    things: Mapping[str, str]
    """Ids of things that there are, by the first segment of the routes that lead to them."""
    session: requests.Session
    """One connection for all requests: a TLS handshake costs more than most of them."""


@pytest.fixture(scope="module")
def controller(database_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The controller with its services, over HTTPS; an administrator's token for it."""
    folder = tmp_path_factory.mktemp("controller")
    started: queue.Queue[Running | BaseException] = queue.Queue()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def serve() -> None:
        config = ControllerConfig(
            data_dir=folder, public_host="localhost", bind_host="127.0.0.1", api_port=0, gateway_port=0
        )
        async with (
            database_cluster.own_database("svc_template") as database_url,
            Database.open(database_url) as database,
            open_services(config, database, enabled_loops=["events"]) as services,
            trio.open_nursery() as nursery,
        ):
            app = create_app(
                REGISTRY, services, authenticator=Authentication(database, REALM), origins=("https://localhost",)
            )
            stopping = trio.Event()
            stop.append((trio.lowlevel.current_trio_token(), stopping))
            [bind] = await nursery.start(
                partial(serve_https, app, ["127.0.0.1:0"], Certificates(self_signed(folder)), stopping)
            )
            url = bind.replace("127.0.0.1", "localhost")
            token, things = await _administrator(database), await _things(database)
            started.put(Running(url, token, things, session))

    session = requests.Session()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            started.put(error)

    thread = threading.Thread(target=run, name="controller")
    thread.start()
    try:
        outcome = started.get(timeout=60)
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    finally:
        session.close()
        for token, event in stop:
            token.run_sync_soon(event.set)
        thread.join(timeout=60)


async def _administrator(database: Database) -> str:
    token = new_secret(REALM.token_prefix)
    await database.execute(
        """
        WITH root AS (
            INSERT INTO users (email, name, role) VALUES ('root@example.org', 'Root', 'administrator') RETURNING id
        )
        INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes)
        SELECT $1, 'last', id, 'schemathesis', '{admin}' FROM root
        """,
        fingerprint(token),
    )
    return token


async def _things(database: Database) -> dict[str, str]:
    """A machine with an address, and one of everything that it refers to, beside what a new controller has."""
    row = await database.fetchrow(
        """
        WITH image AS (
            INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
            VALUES ('i', 'I', 'linux', 'debian', '12', 'debian', 'qcow2', 'file', true) RETURNING id
        ),
        plan AS (
            INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('S', 's', 1, 64, 1) RETURNING id
        ),
        project AS (INSERT INTO projects (name) VALUES ('P') RETURNING id),
        security_group AS (INSERT INTO security_groups (name) VALUES ('web') RETURNING id)
        SELECT image.id AS image, plan.id AS plan, project.id AS project, security_group.id AS security_group,
               pools.id AS pool, pools.network_id AS network, pools.location_id AS location
        FROM image, plan, project, security_group, pools
        """
    )
    assert row is not None
    node = await make_node(database, row["location"], "alpha")
    world = Fleet(row["project"], row["image"], node, row["network"], row["pool"], row["location"])
    await make_pool(database, world, "2001:db8::/48")
    [nic] = await make_nics(database, world, 1)
    await take(database, world.pool_id, nic)
    found = {
        "vms": nic.vm_id,
        "nodes": node,
        "networks": world.network_id,
        "pools": world.pool_id,
        "plans": row["plan"],
        "security-groups": row["security_group"],
    }
    return {segment: str(id) for segment, id in found.items()}


@pytest.fixture(scope="module")
def schema() -> Any:
    # Neither imported nor made while tests are collected: both together take seconds of each process that collects.
    import schemathesis

    return schemathesis.openapi.from_dict(document(REGISTRY))


@pytest.mark.parametrize("operation", [o for o in REGISTRY if o.name not in STREAMS], ids=lambda o: o.name)
def test_the_document_holds_for_whatever_is_sent(
    controller: Running, schema: Any, operation: Any, pytestconfig: pytest.Config
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    described = schema[operation.route.path][operation.route.method.value]
    headers = {"Authorization": f"Bearer {controller.token}"}

    either = described.as_strategy() | described.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @hypothesis.given(case=either, of_a_thing=hypothesis.strategies.booleans())
    @hypothesis.settings(
        max_examples=FULL_EXAMPLES if pytestconfig.getoption("--full") else EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    def send(case: Any, of_a_thing: bool) -> None:
        thing = controller.things.get(operation.route.path.split("/")[1])
        asked = of_a_thing and thing is not None and operation.route.method is not Method.DELETE
        if asked and case.path_parameters:
            case.path_parameters["id"] = thing
        response = case.call(
            base_url=controller.url + "/api/v1", headers=headers, verify=False, session=controller.session
        )
        away = asked and response.status_code == 503  # The node has no agent, and that is said.
        kept = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
        case.validate_response(response, checks=kept if away else [not_a_server_error, *kept])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        send()
