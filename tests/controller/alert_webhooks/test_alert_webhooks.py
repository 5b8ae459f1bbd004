"""Alerts by webhook: signed, once each, by severity, and never an alert that brings about the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import stripe
import trio

from svc_actors.alerts import Severity
from svc_actors.controller.alert_webhooks import MOST_FAILURES
from svc_actors.store import Database
from tests.support.alert_webhooks import World, running, told
from tests.support.webhooks import open_receiving


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_receiving(tmp_path) as receiving:
        async with running(database, tmp_path, receiving) as opened:
            yield opened
            receiving.nursery.cancel_scope.cancel()


async def test_an_alert_is_told_from_its_opening_to_its_end(world: World) -> None:
    receiver = await world.receiver()
    webhook = await world.webhook(receiver)

    await world.opens("node-1", Severity.WARNING)
    requests = [await told(receiver)]
    await world.opens("node-1", Severity.CRITICAL)
    requests.append(await told(receiver))
    [alert] = (await world.root.get("/alerts")).json()["items"]
    await world.root.post(f"/alerts/{alert['id']}/ack")
    await world.tell()
    requests.append(await told(receiver))
    await world.closes("node-1")
    requests.append(await told(receiver))
    await world.tell()

    events = [
        stripe.Webhook.construct_event(request.body, request.signature, webhook["secret"]) for request in requests
    ]
    assert [event["event"] for event in events] == [
        "alert.opened",
        "alert.escalated",
        "alert.acknowledged",
        "alert.resolved",
    ]
    assert {event["subject"]["id"] for event in events} == {alert["id"]}
    assert {event["data"]["message"] for event in events} == {"node-1 is wrong"}
    assert [event["data"]["severity"] for event in events] == ["warning", "critical", "critical", "critical"]
    assert [event["data"]["acknowledged_at"] is not None for event in events] == [False, False, True, True]
    assert events[-1]["data"]["closed_at"] is not None
    assert len({request.delivery for request in requests}) == len(receiver.received) == 4


async def test_each_receiver_is_told_from_its_severity_on(world: World) -> None:
    grave, every = await world.receiver(), await world.receiver()
    await world.webhook(grave, "critical")
    await world.webhook(every, "warning")

    await world.opens("pool-1", Severity.WARNING)
    first = await told(every)
    await world.opens("node-1")
    second = await told(every)
    only = await told(grave)

    assert [first.json()["subject"]["name"], second.json()["subject"]["name"]] == ["pool-1", "node-1"]
    assert only.json()["subject"]["name"] == "node-1"
    assert len(grave.received) == 1


@pytest.mark.parametrize("answer", [301, 410])
async def test_a_receiver_that_refuses_is_disabled_and_says_so_once(world: World, answer: int) -> None:
    elsewhere, receiver = await world.receiver(), await world.receiver(answer)
    receiver.headers = {"Location": elsewhere.url}
    webhook = await world.webhook(receiver)
    path = f"/alerts/webhooks/{webhook['id']}"

    await world.opens("node-1")
    await told(receiver)
    refused = await world.newest(webhook)
    first = await world.alert(webhook)
    for _ in range(MOST_FAILURES - 1):
        assert (await world.root.get(path)).json()["enabled"]
        assert await world.tested(webhook) == 200
        await told(receiver)
        await world.newest(webhook)
    assert not (await world.root.get(path)).json()["enabled"]
    disabled = await world.alert(webhook)
    await world.opens("node-2")
    late = await world.tested(webhook)
    alerts = await world.database.fetchval("SELECT count(*) FROM alerts WHERE starts_with(key, 'webhook:')")
    sent = len(receiver.received)
    receiver.answers = [200]
    enabled = await world.root.patch(path, {"enabled": True})
    await world.tell()
    again = await told(receiver)

    assert (refused["status"], refused["response_status"]) == ("failed", answer)
    assert (first["severity"], disabled["severity"]) == ("warning", "critical")
    assert "localhost" in disabled["message"]
    assert "key=1" not in disabled["message"]
    assert (alerts, sent, late) == (1, MOST_FAILURES, 409)
    assert enabled.json()["enabled"]
    assert await world.alert(webhook) is None
    assert again.json()["subject"]["name"] == "node-2"
    assert elsewhere.received == []


async def test_alerts_about_webhooks_are_told_by_none(world: World) -> None:
    receiver = await world.receiver()
    await world.webhook(receiver)

    await world.opens(f"webhook:{UUID(int=1)}")
    await world.opens("node-1")
    request = await told(receiver)
    await world.tell()

    assert request.json()["subject"]["name"] == "node-1"
    assert len(receiver.received) == 1


async def test_a_receiver_that_is_enabled_while_a_delivery_disables_it_starts_without_failures(world: World) -> None:
    webhook = await world.webhook(await world.receiver())
    database, id_ = world.database, UUID(webhook["id"])
    before = await database.fetchval("SELECT enabled_at FROM webhook_endpoints WHERE id = $1", id_)

    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await tx.execute("UPDATE webhook_endpoints SET enabled = false WHERE id = $1", id_)
            nursery.start_soon(world.root.patch, f"/alerts/webhooks/{id_}", {"enabled": True})
            with trio.fail_after(60):
                while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    await trio.sleep(0.01)

    row = await database.fetchone("SELECT enabled, enabled_at FROM webhook_endpoints WHERE id = $1", id_)
    assert row["enabled"]
    assert row["enabled_at"] > before
