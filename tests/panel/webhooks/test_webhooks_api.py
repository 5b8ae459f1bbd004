"""Webhook endpoints and their history as administrators manage them, and as nobody else does."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from svc_actors.panel.webhooks import WebhookEvent
from svc_actors.store import Database
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.endpoint import utc_now
from tests.support.panel import open_panel
from tests.support.webhooks import later, leads_here, open_webhooks

URL = "https://8.8.8.8/hook"


@pytest.fixture
def clock() -> MockClock:
    return MockClock(rate=1)


async def test_an_endpoint_shows_its_secret_once(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        administrator = await panel.administrator()

        made = await administrator.post("/webhooks", {"url": URL, "events": ["site.created", "backup.failed"]})
        shown = await administrator.get(f"/webhooks/{made.json()['id']}")
        listed = await administrator.get("/webhooks")

    assert made.status_code == 201
    secret = made.json().pop("secret")
    assert secret.startswith("whsec_")
    assert {name: value for name, value in made.json().items() if name != "secret"} == shown.json()
    assert listed.json()["items"] == [shown.json()]
    assert shown.json()["secret_last_four"] == secret[-4:]
    assert shown.json()["events"] == ["backup.failed", "site.created"]
    assert shown.json()["every_event"] is False
    assert secret not in shown.text + listed.text


@pytest.mark.parametrize("events", [["*"], "*", ["*", "site.created"]])
async def test_a_star_stands_for_all_thirteen(panel_database: Database, tmp_path: Path, events: object) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        administrator = await panel.administrator()

        made = await administrator.post("/webhooks", {"url": URL, "events": events})

    assert made.status_code == 201
    assert made.json()["events"] == [event.value for event in WebhookEvent]
    assert made.json()["every_event"] is True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "https://[::1]/", "events": ["*"]}, "url"),
        ({"url": "https://localhost/", "events": ["*"]}, "url"),
        ({"url": URL, "events": ["site.destroyed"]}, "events"),
        ({"url": URL, "events": []}, "events"),
        ({"url": URL}, "events"),
        ({"events": ["*"]}, "url"),
        ({"url": URL, "events": ["*"], "secret": "whsec_mine"}, "secret"),
    ],
)
async def test_an_endpoint_that_nothing_could_be_sent_to_is_refused(
    panel_database: Database, tmp_path: Path, body: dict[str, Any], field: str
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        administrator = await panel.administrator()

        refused = await administrator.post("/webhooks", body)

        kept = await panel.database.fetchval("SELECT count(*) FROM webhook_endpoints")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid")
    assert field in refused.json()["error"]["message"]
    assert kept == 0


async def test_of_many_made_at_once_twenty_are_there(panel_database: Database, tmp_path: Path) -> None:
    statuses: list[int] = []

    async with open_panel(panel_database, tmp_path) as panel:
        administrator = await panel.administrator()

        async def make(number: int) -> None:
            answer = await administrator.post("/webhooks", {"url": f"{URL}/{number}", "events": ["*"]})
            statuses.append(answer.status_code)

        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(make, number)
        kept = await panel.database.fetchval("SELECT count(*) FROM webhook_endpoints")
        one = await panel.database.fetchval("SELECT id FROM webhook_endpoints LIMIT 1")
        await administrator.call("DELETE", f"/webhooks/{one}")
        again = await administrator.post("/webhooks", {"url": URL, "events": ["*"]})

    assert sorted(statuses) == [201] * 20 + [409] * 44
    assert kept == 20
    assert again.status_code == 201


@pytest.mark.parametrize(
    ("events", "asked", "sent"),
    [
        (["*"], None, "update.installed"),
        (["ssl.failed", "site.created"], None, "ssl.failed"),
        (["site.created"], "health.critical", "health.critical"),
    ],
)
async def test_a_test_goes_the_way_of_all_deliveries_and_says_that_it_is_one(
    panel_database: Database, tmp_path: Path, events: list[str], asked: str | None, sent: str
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver()
        endpoint = await world.endpoint(receiver, *events)
        await world.endpoint(await world.receiver())  # Another one is told nothing of it.

        answer = await world.administrator.post(
            f"/webhooks/{endpoint['id']}/test", {} if asked is None else {"event": asked}
        )
        request = await receiver.next()
        await world.recorded(endpoint["id"], attempts=1)
        shown = await world.administrator.get(f"/webhooks/{endpoint['id']}/deliveries/{answer.json()['id']}")
        written = await world.database.fetchval("SELECT count(*) FROM webhook_deliveries")

    assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    assert request.delivery == answer.json()["id"]
    assert request.headers["X-Service-Event"] == sent
    assert request.json()["data"] == {"test": True}
    assert shown.json()["status"] == "delivered"
    assert shown.json()["payload"].encode() == request.body
    assert written == 1


async def test_a_disabled_endpoint_keeps_what_waits_and_is_told_nothing_new(
    panel_database: Database, tmp_path: Path, clock: MockClock
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(503, 200)
        endpoint = await world.endpoint(receiver, "site.created", "job.failed")
        path = f"/webhooks/{endpoint['id']}"
        await world.emit(WebhookEvent.SITE_CREATED)
        first = await receiver.next()
        await world.recorded(endpoint["id"], attempts=1)

        disabled = await world.administrator.call("PATCH", path, {"enabled": False})
        await world.emit(WebhookEvent.JOB_FAILED)
        refused = await world.administrator.post(f"{path}/test")
        await later(clock, 40, world.database)
        await later(clock, 40, world.database)
        meanwhile = len(receiver.received)
        enabled = await world.administrator.call("PATCH", path, {"enabled": True, "events": ["job.failed"]})
        second = await receiver.next()
        await world.recorded(endpoint["id"], attempts=2)

    assert (disabled.json()["enabled"], disabled.json()["waiting"]) == (False, 1)
    assert refused.status_code == 409
    assert meanwhile == 1
    assert enabled.json()["events"] == ["job.failed"]
    assert second.delivery == first.delivery
    assert len(receiver.received) == 2


async def test_a_name_without_an_address_is_refused(panel_database: Database, tmp_path: Path) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with open_webhooks(panel_database, tmp_path, resolve=resolve) as world:
        answer = await world.administrator.post("/webhooks", {"url": "https://nobody.example/", "events": ["*"]})

    assert answer.status_code == 400
    assert "nobody.example has no address: Name or service not known" in answer.json()["error"]["message"]


async def test_the_history_is_paged_and_filtered(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(410, 200)
        endpoint = await world.endpoint(receiver)
        path = f"/webhooks/{endpoint['id']}/deliveries"
        await world.emit()
        await world.recorded(endpoint["id"], attempts=1)
        await world.database.execute(
            """
            INSERT INTO webhook_deliveries (endpoint_id, event_id, status, attempts, created_at)
            SELECT endpoint_id, event_id, 'delivered', 1, created_at + n * interval '1 second'
            FROM webhook_deliveries, generate_series(1, 119) AS n
            """
        )

        first = (await world.administrator.get(f"{path}?page_size=50")).json()
        last = (await world.administrator.get(f"{path}?page_size=50&page=3")).json()
        failed = (await world.administrator.get(f"{path}?status=failed")).json()
        unknown = await world.administrator.get(f"{path}?status=lost")

    assert (first["total"], first["pages"], len(first["items"]), len(last["items"])) == (120, 3, 50, 20)
    assert [item["status"] for item in failed["items"]] == ["failed"]
    assert failed["items"][0] == last["items"][-1]
    assert failed["items"][0]["response_status"] == 410
    assert unknown.status_code == 400


async def test_history_is_kept_for_a_fortnight_or_500_and_what_waits_is_kept(panel_database: Database) -> None:
    now = utc_now()
    endpoints = [
        await panel_database.fetchval(
            "INSERT INTO webhook_endpoints (url, events, sealed_secret, last_four)"
            " VALUES ('https://receiver.example/', '{*}', '\\x00', 'abcd') RETURNING id"
        )
        for _ in range(2)
    ]
    await panel_database.execute(
        "INSERT INTO webhook_events (id, event, at, body)"
        " VALUES ($1, 'site.created', $2, ''), ($3, 'job.failed', $2, '')",
        UUID(int=1),
        now - timedelta(days=15),
        UUID(int=2),
    )

    async def write(endpoint_id: UUID, status: str, age: timedelta, number: int = 1) -> None:
        await panel_database.execute(
            """
            INSERT INTO webhook_deliveries (endpoint_id, event_id, status, created_at, next_attempt_at)
            SELECT $1, $2, $3, $4::timestamptz, CASE WHEN $3 IN ('pending', 'retrying') THEN $4::timestamptz END
            FROM generate_series(1, $5)
            """,
            endpoint_id,
            UUID(int=1),
            status,
            now - age,
            number,
        )

    await write(endpoints[0], "delivered", timedelta(days=13))
    await write(endpoints[0], "delivered", timedelta(days=14, minutes=1))
    await write(endpoints[0], "failed", timedelta(days=20))
    await write(endpoints[0], "pending", timedelta(days=20))
    await write(endpoints[0], "retrying", timedelta(days=20))
    await write(endpoints[1], "pending", timedelta(days=3), 5)
    await write(endpoints[1], "failed", timedelta(days=2), 40)
    await write(endpoints[1], "delivered", timedelta(days=1), 480)

    await deliveries.forget_old(panel_database, now)

    kept = {
        (endpoints.index(row["endpoint_id"]), row["status"]): row["number"]
        for row in await panel_database.fetch(
            "SELECT endpoint_id, status, count(*) AS number FROM webhook_deliveries GROUP BY endpoint_id, status"
        )
    }
    assert kept == {
        (0, "delivered"): 1,
        (0, "pending"): 1,
        (0, "retrying"): 1,
        (1, "pending"): 5,
        (1, "failed"): 20,
        (1, "delivered"): 480,
    }
    assert [row["id"] for row in await panel_database.fetch("SELECT id FROM webhook_events")] == [UUID(int=1)]


async def test_an_endpoint_is_changed_only_to_where_deliveries_may_go(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path, resolve=leads_here, allowed="127.0.0.9/32") as world:
        answer = await world.administrator.post("/webhooks", {"url": URL, "events": ["*"]})
        path = f"/webhooks/{answer.json()['id']}"

        refused = await world.administrator.call("PATCH", path, {"url": "https://inside.example/"})
        moved = await world.administrator.call("PATCH", path, {"url": "https://1.1.1.1/"})

    assert refused.status_code == 400
    assert moved.json()["url"] == "https://1.1.1.1/"
