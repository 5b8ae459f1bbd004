"""What the webhooks of both services promise: who manages endpoints, where they may be, and what becomes of secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import stripe

from tests.conftest import OpenPool
from tests.support.webhooks import open_receiving
from tests.webhooks.world import KINDS, Service, open_service

PUBLIC = "https://8.8.8.8/hook"
NOWHERE = UUID("4dca7c1e-3a43-4d6b-9f0e-0d6f5a1f7b21")
NOT_PUBLIC = (
    "http://8.8.8.8/",
    "https://10.0.0.1/",
    "https://169.254.169.254/latest",
    "https://[fd00::1]/",
    "https://0x7f000001/",
    "https://a:b@8.8.8.8/",
)
ONE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GET", f"/{NOWHERE}", {}),
    ("PATCH", f"/{NOWHERE}", {"enabled": False}),
    ("DELETE", f"/{NOWHERE}", {}),
    ("POST", f"/{NOWHERE}/test", {}),
    ("POST", f"/{NOWHERE}/rotate", {}),
    ("GET", f"/{NOWHERE}/deliveries", {}),
    ("GET", f"/{NOWHERE}/deliveries/{NOWHERE}", {}),
    ("POST", f"/{NOWHERE}/deliveries/{NOWHERE}/replay", {}),
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def pool(request: pytest.FixtureRequest, kind: str) -> OpenPool:
    pool: OpenPool = request.getfixturevalue("panel_database_pool" if kind == "panel" else "database_pool")
    return pool


@pytest.fixture
async def service(kind: str, pool: OpenPool, tmp_path: Path) -> AsyncIterator[Service]:
    async with pool(size=4) as database, open_receiving(tmp_path) as receiving:
        async with open_service(KINDS[kind], database, tmp_path, receiving) as service:
            yield service
            receiving.nursery.cancel_scope.cancel()


async def test_no_secret_is_kept_or_shown_and_each_change_is_audited_once(service: Service) -> None:
    endpoint, receiver = await service.endpoint()
    path = f"{service.kind.path}/{endpoint['id']}"
    tested = (await service.root.post(f"{path}/test")).json()
    await service.send()
    await service.root.post(f"{path}/deliveries/{tested['id']}/replay")
    rotated = (await service.root.post(f"{path}/rotate")).json()
    await service.send()
    shown = (service.kind.path, path, f"{path}/deliveries", f"{path}/deliveries/{tested['id']}")
    read = "".join([(await service.root.get(each)).text for each in shown])
    tables = await service.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [
        await service.database.fetchval(f"SELECT string_agg(t::text, E'\\n') FROM \"{table['tablename']}\" AS t")
        for table in tables
    ]
    await service.root.patch(path, {"enabled": False})
    await service.root.delete(path)
    audited = [row for row in await service.harness.audit() if row["target_id"] == endpoint["id"]]

    dump = "\n".join(text for text in rows if text)
    assert endpoint["id"] in dump
    for secret in (endpoint["secret"], rotated["secret"]):
        bare = secret.removeprefix("whsec_")
        for form in (secret, bare, bare.encode().hex()):
            assert form not in dump
            assert form not in read
    first, second = receiver.received
    stripe.Webhook.construct_event(first.body, first.signature, endpoint["secret"])
    stripe.Webhook.construct_event(second.body, second.signature, rotated["secret"])
    assert [(row["operation"], row["outcome"]) for row in audited] == [
        (operation, "ok") for operation in service.kind.operations
    ]
    assert "key=1" not in json.dumps(audited, default=str)


async def test_only_public_receivers_are_taken(service: Service) -> None:
    answers = [await service.root.post(service.kind.path, {"url": url, **service.kind.body}) for url in NOT_PUBLIC]

    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
        assert "url" in answer.json()["error"]["message"]
    assert (await service.root.get(service.kind.path)).json()["total"] == 0


async def test_endpoints_are_for_administrators_alone(service: Service) -> None:
    harness, path = service.harness, service.kind.path
    customer = harness.program(await harness.token(await harness.person("ada@example.com")))
    boss = await harness.person("r@example.com", "administrator")
    limited = harness.program(await harness.token(boss, (service.kind.scope,)))
    endpoint, _ = await service.endpoint()

    for method, below, body in (("GET", "", {}), ("POST", "", {"url": PUBLIC, **service.kind.body}), *ONE):
        call = below.replace(str(NOWHERE), endpoint["id"], 1)
        refused = await customer.call(method, path + call, body)
        out_of_scope = await limited.call(method, path + call, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), (method, call)
        assert "administrators" in refused.json()["error"]["message"]
        assert (out_of_scope.status_code, out_of_scope.json()["error"]["code"]) == (403, "forbidden"), (method, call)
    [kept] = (await service.root.get(path)).json()["items"]
    assert kept == {name: value for name, value in endpoint.items() if name != "secret"}


async def test_an_endpoint_that_does_not_exist_is_not_found(service: Service) -> None:
    for method, below, body in ONE:
        answer = await service.root.call(method, service.kind.path + below, body)

        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), (method, below)


async def test_what_failed_is_tried_later_and_replayed_under_the_same_id(service: Service) -> None:
    endpoint, receiver = await service.endpoint(500, 410, 200)
    elsewhere, _ = await service.endpoint()
    path = f"{service.kind.path}/{endpoint['id']}/deliveries"
    foreign = f"{service.kind.path}/{elsewhere['id']}/deliveries"

    tested = await service.root.post(f"{service.kind.path}/{endpoint['id']}/test")
    states = [tested.json()]
    for _ in range(3):
        await service.send()
        states.append((await service.root.get(f"{path}/{states[0]['id']}")).json())
        replayed = await service.root.post(f"{path}/{states[0]['id']}/replay")
        assert (replayed.status_code, replayed.json()["status"], replayed.json()["attempts"]) == (200, "pending", 0)
    refused = await service.root.post(f"{foreign}/{states[0]['id']}/replay")
    listed = (await service.root.get(path)).json()

    assert tested.status_code == 200
    assert [(state["status"], state["response_status"]) for state in states] == [
        ("pending", None),
        ("retrying", 500),
        ("failed", 410),
        ("delivered", 200),
    ]
    assert states[1]["next_attempt_at"] is not None
    assert {request.delivery for request in receiver.received} == {states[0]["id"]}
    assert {request.body for request in receiver.received} == {states[-1]["payload"].encode()}
    assert receiver.received[0].headers["X-Service-Event"] == service.kind.test_event
    assert receiver.received[0].json()["data"] == {"test": True}
    assert refused.status_code == 404
    assert [item["id"] for item in listed["items"]] == [states[0]["id"]]
