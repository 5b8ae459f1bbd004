"""Deliveries as receivers get them: signed, on schedule, at least once, and none delayed by another's receiver."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import stripe
import trio
import trio.testing
from trio.testing import MockClock

from svc.service.alerts import ActorAlerts
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.runtime import Crash
from svc_actors.store import Database, Queryable
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.delivery_states import SCHEDULE
from svc_actors.webhooks.dispatch import Dispatcher
from svc_actors.webhooks.receivers import DEADLINE
from tests.support.webhooks import HANG, NAME, Received, later, open_receiving, open_webhooks, wall_clock


@pytest.fixture
def clock() -> MockClock:
    return MockClock(rate=1)


async def test_a_delivery_is_taken_by_stripes_library(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver()
        endpoint = await world.endpoint(receiver)

        event_id = await world.emit(type="php")
        request = await receiver.next()
        delivery = await world.recorded(endpoint["id"], attempts=1)

        event = stripe.Webhook.construct_event(request.body, request.signature, endpoint["secret"])
    assert event["id"] == str(event_id)
    assert event["data"]["type"] == "php"
    assert abs(request.timestamp - time.time()) < 60
    assert (delivery["status"], delivery["attempts"], delivery["response_status"]) == ("delivered", 1, 200)
    assert delivery["next_attempt_at"] is None


async def test_the_head_of_a_delivery_to_the_byte(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver()
        endpoint = await world.endpoint(receiver)

        await world.emit()
        request = await receiver.next()

        delivery = await world.delivery(endpoint["id"])
    assert request.head.decode().split("\r\n") == [
        "POST /hook?key=1 HTTP/1.1",
        f"Host: {NAME}:{receiver.port}",
        "User-Agent: Service-Webhook/1",
        "Content-Type: application/json",
        "X-Service-Event: site.created",
        f"X-Service-Delivery: {delivery['id']}",
        f"X-Service-Signature: {request.signature}",
        f"Content-Length: {len(request.body)}",
    ]


async def test_six_attempts_on_schedule_with_one_body_and_one_delivery_id(
    panel_database: Database, tmp_path: Path, clock: MockClock
) -> None:
    assert [pause.total_seconds() for pause in SCHEDULE] == [30, 120, 600, 1800, 3600]
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(500, 503, 408, 429, 599, 500)
        endpoint = await world.endpoint(receiver)

        await world.emit()
        requests = [await receiver.next()]
        states = []
        for pause in SCHEDULE:
            states.append(await world.recorded(endpoint["id"], attempts=len(requests)))
            await later(clock, pause.total_seconds() - 5, world.database)
            assert len(receiver.received) == len(requests), "an attempt came before its time"
            await later(clock, 5.1, world.database)
            requests.append(await receiver.next())
        ended = await world.recorded(endpoint["id"], attempts=6)
        await later(clock, 86400, world.database)
        await world.emit(WebhookEvent.HEALTH_CRITICAL)
        assert (await receiver.next()).headers["X-Service-Event"] == "health.critical"
        alerts = await world.database.fetch("SELECT * FROM alerts WHERE closed_at IS NULL")

    assert [state["status"] for state in states] == ["retrying"] * 5
    assert [state["next_attempt_at"] - state["attempted_at"] for state in states] == list(SCHEDULE)
    assert (ended["status"], ended["attempts"], ended["next_attempt_at"]) == ("failed", 6, None)
    assert len({request.body for request in requests}) == 1
    assert {request.delivery for request in requests} == {str(ended["id"])}
    assert len({request.signature for request in requests}) == 6
    assert len({request.timestamp for request in requests}) == 6
    for request in requests:
        stripe.WebhookSignature.verify_header(
            request.body.decode(), request.signature, endpoint["secret"], tolerance=None
        )
    assert [alert["key"] for alert in alerts] == [f"webhook:{endpoint['id']}"]
    assert NAME in alerts[0]["message"]
    assert "key=1" not in alerts[0]["message"]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 410, 499])
async def test_what_a_receiver_refuses_is_not_tried_again(
    panel_database: Database, tmp_path: Path, status: int
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        elsewhere = await world.receiver()
        receiver = await world.receiver(status)
        receiver.headers = {"Location": elsewhere.url}
        endpoint = await world.endpoint(receiver)

        await world.emit()
        await receiver.next()

        delivery = await world.recorded(endpoint["id"], attempts=1)
    assert (delivery["status"], delivery["response_status"], delivery["error"]) == ("failed", status, None)
    assert elsewhere.received == []


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_taken_for_delivered(panel_database: Database, tmp_path: Path, status: int) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(status)
        receiver.headers = {"Retry-After": "86400"}
        endpoint = await world.endpoint(receiver)

        await world.emit()
        delivery = await world.recorded(endpoint["id"], attempts=1)

    assert delivery["status"] == "delivered"


async def test_a_receiver_that_cannot_be_reached_is_tried_again(panel_database: Database, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with open_webhooks(panel_database, tmp_path) as world:
            receiver = await world.receiver()
            receiver.port = taken.getsockname()[1]  # Nobody listens there.
            endpoint = await world.endpoint(receiver)

            await world.emit()
            await world.recorded(endpoint["id"], attempts=1)

            delivery = await world.delivery(endpoint["id"])
    assert delivery["status"] == "retrying"
    assert "refused" in delivery["error"]


async def test_a_receiver_with_a_strange_certificate_is_told_nothing(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver()
        answer = await world.administrator.post(
            "/webhooks", {"url": f"https://other.example:{receiver.port}/", "events": ["*"]}
        )

        await world.emit()

        delivery = await world.recorded(answer.json()["id"], attempts=1)
    assert delivery["status"] == "retrying"
    assert "certificate" in delivery["error"].lower()
    assert receiver.received == []


async def test_a_receiver_that_does_not_answer_is_given_up_after_the_deadline(
    panel_database: Database, tmp_path: Path, clock: MockClock
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(HANG)
        endpoint = await world.endpoint(receiver)

        await world.emit()
        await receiver.next()
        await later(clock, DEADLINE + 0.1, world.database)

        delivery = await world.recorded(endpoint["id"], attempts=1)
    assert delivery["status"] == "retrying"
    assert delivery["error"] == "no answer within 15 seconds"
    assert 15_000 <= delivery["duration_ms"] < 25_000


async def test_a_resolver_that_does_not_answer_is_within_the_deadline(
    panel_database: Database, tmp_path: Path, clock: MockClock
) -> None:
    asked = trio.Event()
    answers = True

    async def resolve(host: str, port: int) -> list[str]:
        if not answers:
            asked.set()
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return ["127.0.0.1"]

    async with open_webhooks(panel_database, tmp_path, resolve=resolve) as world:
        endpoint = await world.endpoint(await world.receiver())
        answers = False

        await world.emit()
        await asked.wait()
        await later(clock, DEADLINE + 0.1, world.database)

        delivery = await world.recorded(endpoint["id"], attempts=1)
    assert (delivery["status"], delivery["error"]) == ("retrying", "no answer within 15 seconds")


async def test_one_healthy_receiver_among_nineteen_that_hang_is_not_delayed(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        hanging = [await world.receiver(HANG) for _ in range(19)]
        for receiver in hanging:
            await world.endpoint(receiver)
        healthy = await world.receiver()
        await world.endpoint(healthy)
        for _ in range(5):  # More than are tried at once of one endpoint.
            await world.emit()
        for receiver in hanging:
            await receiver.next()
        for _ in range(5):
            await healthy.next()

        began = trio.current_time()
        event_id = await world.emit(WebhookEvent.BACKUP_FAILED)
        request = await healthy.next()
        took = trio.current_time() - began

    assert request.json()["id"] == str(event_id)
    assert took < DEADLINE / 3, "it does not wait for those that hang"
    assert all(len(receiver.received) <= 4 for receiver in hanging)


async def test_a_slow_delivery_leaves_room_for_others_of_its_endpoint(panel_database: Database, tmp_path: Path) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(HANG, 200)
        await world.endpoint(receiver)

        slow = await world.emit()
        assert (await receiver.next()).json()["id"] == str(slow)
        quick = [await world.emit() for _ in range(10)]
        seen = {(await receiver.next()).json()["id"] for _ in quick}

    assert seen == {str(event_id) for event_id in quick}


async def test_the_schedule_survives_a_restart(panel_database: Database, tmp_path: Path, clock: MockClock) -> None:
    wall = wall_clock()
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver(503, 200)
        async with open_webhooks(panel_database, tmp_path, clock=wall, receiving=receiving) as world:
            endpoint = await world.endpoint(receiver)
            await world.emit()
            first = await receiver.next()
            before = await world.recorded(endpoint["id"], attempts=1)

        await later(clock, 20, panel_database)
        async with open_webhooks(panel_database, tmp_path, clock=wall, receiving=receiving) as world:
            await later(clock, 5, panel_database)
            early = len(receiver.received)
            await later(clock, 6, panel_database)
            second = await receiver.next()
            after = await world.recorded(endpoint["id"], attempts=2)

    assert (before["status"], before["attempts"]) == ("retrying", 1)
    assert early == 1
    assert (second.delivery, second.body) == (first.delivery, first.body)
    assert second.timestamp >= first.timestamp + 30
    assert (after["status"], after["attempts"]) == ("delivered", 2)
    assert after["attempted_at"] - before["attempted_at"] >= timedelta(seconds=30)


async def test_a_crash_between_sending_and_recording_sends_again_under_the_same_id(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = trio.Event()

    async def never_recorded(*_: object, **__: object) -> None:
        recording.set()
        await trio.sleep_forever()

    async def die(dispatcher: Dispatcher, deadline: float) -> None:
        """Nothing is drained."""

    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver()
        with monkeypatch.context() as patched, trio.CancelScope() as process:
            patched.setattr(deliveries, "record", never_recorded)
            patched.setattr(Dispatcher, "drain", die)
            async with open_webhooks(panel_database, tmp_path, receiving=receiving) as world:
                endpoint = await world.endpoint(receiver)
                await world.emit()
                first = await receiver.next()
                await recording.wait()
                process.cancel()

        async with open_webhooks(panel_database, tmp_path, receiving=receiving) as world:
            second = await receiver.next()
            delivery = await world.recorded(endpoint["id"], attempts=1)

    assert (second.delivery, second.body) == (first.delivery, first.body)
    assert (delivery["status"], delivery["attempts"]) == ("delivered", 1)


async def test_attempts_under_way_are_recorded_when_the_service_stops_and_no_others_start(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, drain = trio.Event(), Dispatcher.drain

    async def hold(request: Received) -> None:
        await answers.wait()

    async def answer_when_drained(self: Dispatcher, deadline: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, self, deadline)
            await trio.testing.wait_all_tasks_blocked()
            answers.set()

    monkeypatch.setattr(Dispatcher, "drain", answer_when_drained)
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver()
        receiver.before_answer = hold
        async with open_webhooks(panel_database, tmp_path, receiving=receiving) as world:
            await world.endpoint(receiver)
            for _ in range(5):  # More than are tried at once.
                await world.emit()
            under_way = {(await receiver.next()).delivery for _ in range(4)}
        receiving.nursery.cancel_scope.cancel()

    rows = await panel_database.fetch("SELECT id::text, status FROM webhook_deliveries")
    assert {row["id"] for row in rows if row["status"] == "delivered"} == under_way
    assert [row["status"] for row in rows if row["id"] not in under_way] == ["pending"]


async def test_a_defect_that_one_endpoint_meets_is_alerted_of_and_delays_no_other(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[Crash] = []
    due, broken = deliveries.due, set[UUID]()

    async def broken_for_one(
        queryable: Queryable, endpoint_id: UUID, now: datetime, *, most: int, under_way: Collection[UUID]
    ) -> list[deliveries.DueDelivery]:
        if endpoint_id in broken:
            raise ValueError("a defect")
        return await due(queryable, endpoint_id, now, most=most, under_way=under_way)

    monkeypatch.setattr(ActorAlerts, "notice", lambda _, crash: crashes.append(crash))
    monkeypatch.setattr(deliveries, "due", broken_for_one)
    async with open_webhooks(panel_database, tmp_path) as world:
        endpoint = await world.endpoint(await world.receiver())
        broken.add(UUID(endpoint["id"]))
        healthy = await world.receiver()
        await world.endpoint(healthy)
        for _ in range(5):
            await world.emit()
            await healthy.next()

    assert {(crash.actor, str(crash.error)) for crash in crashes} == {(f"WebhookEndpoint:{endpoint['id']}", "a defect")}


async def test_a_retry_is_signed_with_the_secret_of_its_own_moment(
    panel_database: Database, tmp_path: Path, clock: MockClock
) -> None:
    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver(500, 200)
        endpoint = await world.endpoint(receiver)
        await world.emit()
        first = await receiver.next()
        await world.recorded(endpoint["id"], attempts=1)

        rotated = (await world.administrator.post(f"/webhooks/{endpoint['id']}/rotate")).json()
        await later(clock, 31, world.database)
        second = await receiver.next()

    assert rotated["secret"] != endpoint["secret"]
    stripe.Webhook.construct_event(first.body, first.signature, endpoint["secret"])
    stripe.WebhookSignature.verify_header(second.body.decode(), second.signature, rotated["secret"], tolerance=None)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(
            second.body.decode(), second.signature, endpoint["secret"], tolerance=None
        )


async def test_a_rotation_reaches_what_was_read_before_it(panel_database: Database, tmp_path: Path) -> None:
    answers = trio.Event()

    async def hold(request: Received) -> None:
        await answers.wait()

    async with open_webhooks(panel_database, tmp_path) as world:
        receiver = await world.receiver()
        receiver.before_answer = hold
        endpoint = await world.endpoint(receiver)
        async with world.database.transaction() as tx:  # All are due at once, and read at once.
            for _ in range(12):
                await emit(tx, WebhookEvent.SITE_CREATED)
        before = [await receiver.next() for _ in range(4)]

        rotated = (await world.administrator.post(f"/webhooks/{endpoint['id']}/rotate")).json()
        answers.set()
        after = [await receiver.next() for _ in range(8)]

    for requests, secret in ((before, endpoint["secret"]), (after, rotated["secret"])):
        for request in requests:
            stripe.Webhook.construct_event(request.body, request.signature, secret)
    assert len({request.delivery for request in before + after}) == 12
