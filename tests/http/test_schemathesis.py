"""Whatever the OpenAPI document allows, and much that it does not, is answered within it and never with a 5xx (R16).

The whole controller serves over HTTPS in a thread with its own Trio; the requests come from schemathesis, and what
reproduces a failure is printed. That the service refuses a well-formed order for a reason of its own (a password that
holds the account's name) is no finding.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis
import pytest
import schemathesis
import trio
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from svc.cli.compose import open_services
from svc.controller.authenticate import Authentication
from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.registry.openapi import document
from svc.registry.operation import Presentation
from svc_actors.secrets import API_TOKEN_PREFIX, fingerprint, new_secret
from svc_actors.store import Database
from svc_http.app import create_app
from svc_http.server import serve_https
from tests.certificates import self_signed
from tests.conftest import Cluster

EXAMPLES = 12
REGISTRY = controller_registry()
STREAMS = {operation.name for operation in REGISTRY if operation.presentation is Presentation.EVENT_STREAM}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(document(REGISTRY))


@dataclass(frozen=True)
class Running:
    url: str
    token: str


@pytest.fixture(scope="module")
def controller(database_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The controller with its services, over HTTPS; an administrator's token for it."""
    folder = tmp_path_factory.mktemp("controller")
    started: queue.Queue[Running | BaseException] = queue.Queue()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def serve() -> None:
        async with Database.open(database_cluster.url, size=1) as administration:
            await administration.execute("CREATE DATABASE schemathesis TEMPLATE svc_template STRATEGY file_copy")
        config = ControllerConfig(
            data_dir=folder, public_host="localhost", bind_host="127.0.0.1", api_port=0, gateway_port=0
        )
        async with (
            Database.open(database_cluster.url_of("schemathesis")) as database,
            open_services(config, database) as services,
            trio.open_nursery() as nursery,
        ):
            app = create_app(REGISTRY, services, authenticator=Authentication(database), public_url="https://localhost")
            stopping = trio.Event()
            stop.append((trio.lowlevel.current_trio_token(), stopping))
            [bind] = await nursery.start(partial(serve_https, app, config, self_signed(folder), stopping))
            started.put(Running(bind.replace("127.0.0.1", "localhost"), await _administrator(database)))

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
        for token, event in stop:
            token.run_sync_soon(event.set)
        thread.join(timeout=60)


async def _administrator(database: Database) -> str:
    token = new_secret(API_TOKEN_PREFIX)
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


@pytest.mark.parametrize("operation", [o for o in REGISTRY if o.name not in STREAMS], ids=lambda o: o.name)
def test_the_document_holds_for_whatever_is_sent(controller: Running, operation: Any) -> None:
    described = SCHEMA[operation.route.path][operation.route.method.value]
    headers = {"Authorization": f"Bearer {controller.token}"}

    either = described.as_strategy() | described.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @hypothesis.given(case=either)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    def send(case: Any) -> None:
        response = case.call(base_url=controller.url + "/api/v1", headers=headers, verify=False)
        case.validate_response(response, checks=CHECKS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        send()
