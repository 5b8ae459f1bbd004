"""Alerts by webhook: signed, once each, by severity, and never an alert that brings about the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import stripe
import trio

from svc.controller.config import ControllerConfig
from svc.controller.loops import ControllerLoop
from svc.service.controller.services import open_services
from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.controller.alert_webhooks.endpoints import MOST_FAILURES
from svc_actors.controller.alert_webhooks.telling import tell_receivers
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from tests.support.harness import Client
from tests.support.identity import CheapPasswords, IdentityHarness, open_identity
from tests.support.webhooks import HANG, Received, Receiver, Receiving, open_receiving

ROOT = "root@example.org"


@dataclass
class World:
    """A whole controller, an administrator, and receivers that it reaches."""

    house: IdentityHarness
    root: Client
    receiving: Receiving

    @property
    def database(self) -> Database:
        return self.house.database

    async def receiver(self, *answers: int) -> Receiver:
        return await self.receiving.receiver(*answers)

    async def webhook(self, receiver: Receiver, least: str = "warning") -> dict[str, Any]:
        url = f"https://localhost:{receiver.port}/hook?key=1"
        answer = await self.root.post("/alerts/webhooks", {"url": url, "least": least})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def opens(self, key: str, severity: Severity = Severity.CRITICAL) -> None:
        """It is opened, and receivers are told."""
        await self.database.transact(partial(raise_alert, key=key, message=f"{key} is wrong", severity=severity))
        await self.tell()

    async def closes(self, key: str) -> None:
        await self.database.transact(partial(close_alert, key=key))
        await self.tell()

    async def tell(self) -> None:
        """Receivers are told what there is to tell, and what came of it is recorded."""
        await tell_receivers(self.database)
        await self.house.services.loops.step("webhooks")

    async def tested(self, webhook: dict[str, Any]) -> int:
        """The status of the answer to an order of a test, which was sent."""
        answer = await self.root.post(f"/alerts/webhooks/{webhook['id']}/test")
        await self.tell()
        return answer.status_code

    async def newest(self, webhook: dict[str, Any]) -> dict[str, Any]:
        """Its newest delivery, of which an attempt has been made."""
        newest: dict[str, Any]
        newest, *_ = (await self.root.get(f"/alerts/webhooks/{webhook['id']}/deliveries")).json()["items"]
        assert newest["attempts"] >= 1
        return newest

    async def alert(self, webhook: dict[str, Any]) -> Any:
        key = f"webhook:{webhook['id']}"
        return await self.database.fetchrow("SELECT * FROM alerts WHERE key = $1 AND closed_at IS NULL", key)


async def told(receiver: Receiver) -> Received:
    with trio.fail_after(30):
        return await receiver.next()


@asynccontextmanager
async def running(
    database: Database, folder: Path, receiving: Receiving, loops: Collection[ControllerLoop] = ()
) -> AsyncIterator[World]:
    networks = (ip_network("127.0.0.1/32"), ip_network("::1/128"))
    config = ControllerConfig(
        data_dir=folder,
        public_host="localhost",
        bind_host="127.0.0.1",
        gateway_port=0,
        webhooks=WebhookSettings(networks=networks, ca_file=receiving.authorities),
    )
    async with (
        open_services(config, database, passwords=CheapPasswords(), wanted=loops) as services,
        open_identity(database, services=services) as house,
    ):
        if not await database.fetchval("SELECT EXISTS (SELECT FROM users)"):
            await house.person(ROOT, "administrator")
        yield World(house, await house.signed_in(ROOT), receiving)


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


async def test_a_failing_server_is_tried_again_later(world: World) -> None:
    receiver = await world.receiver(500)
    webhook = await world.webhook(receiver)

    await world.tested(webhook)
    request = await told(receiver)
    delivery = await world.newest(webhook)

    assert request.json()["event"] == "alert.test"
    assert request.json()["data"] == {"test": True}
    assert (delivery["status"], delivery["response_status"]) == ("retrying", 500)
    assert delivery["next_attempt_at"] is not None


async def test_what_was_sent_and_not_recorded_is_sent_again_after_a_restart(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.controller.services.DRAIN_SECONDS", 0.1)
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver(HANG, 200)
        async with running(database, tmp_path, receiving, ["webhooks"]) as world:
            webhook = await world.webhook(receiver)
            await world.database.transact(partial(raise_alert, key="node-1", message="m", severity=Severity.CRITICAL))
            await tell_receivers(world.database)
            first = await told(receiver)
        async with running(database, tmp_path, receiving) as world:
            await world.tell()
            second = await told(receiver)
            delivery = await world.newest(webhook)
        receiving.nursery.cancel_scope.cancel()

    assert (second.delivery, second.body) == (first.delivery, first.body)
    assert delivery["status"] == "delivered"


async def test_no_secret_is_in_the_database_or_an_answer_and_changes_are_audited(world: World) -> None:
    receiver = await world.receiver()
    webhook = await world.webhook(receiver)
    path = f"/alerts/webhooks/{webhook['id']}"
    await world.tested(webhook)
    tested = await told(receiver)
    delivery = await world.newest(webhook)
    rotated = (await world.root.post(f"{path}/rotate")).json()
    await world.root.post(f"{path}/deliveries/{delivery['id']}/replay")
    await world.tell()
    replayed = await told(receiver)
    shown = ("/alerts/webhooks", path, f"{path}/deliveries/{delivery['id']}")
    read = "".join([(await world.root.get(found)).text for found in shown])
    tables = await world.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    dump = [
        await world.database.fetchval(f"SELECT string_agg(t::text, E'\\n') FROM \"{row['tablename']}\" AS t")
        for row in tables
    ]
    await world.root.delete(path)
    audited = await world.database.fetch("SELECT operation FROM audit WHERE target_id = $1 ORDER BY at", webhook["id"])

    kept = "\n".join(part for part in dump if part)
    for secret in (webhook["secret"], rotated["secret"]):
        for form in (secret, secret.removeprefix("whsec_"), secret.removeprefix("whsec_").encode().hex()):
            assert form not in kept
            assert form not in read
    stripe.Webhook.construct_event(tested.body, tested.signature, webhook["secret"])
    stripe.Webhook.construct_event(replayed.body, replayed.signature, rotated["secret"])
    assert replayed.delivery == tested.delivery
    assert [row["operation"] for row in audited] == [
        f"alert.{name}" for name in ("create_webhook", "test_webhook", "rotate_webhook", "replay", "delete_webhook")
    ]


@pytest.mark.parametrize(
    "url", ["http://example.org/", "https://169.254.169.254/", "https://10.0.0.1/", "https://user@a.example/"]
)
async def test_only_public_receivers_are_taken_and_by_administrators_alone(world: World, url: str) -> None:
    await world.house.person("staff@example.org", "staff")
    staff = await world.house.signed_in("staff@example.org")

    refused = await world.root.post("/alerts/webhooks", {"url": url})
    forbidden = await staff.post("/alerts/webhooks", {"url": "https://1.1.1.1/"})

    assert refused.status_code == 400
    assert forbidden.status_code == 403
    assert (await world.root.get("/alerts/webhooks")).json()["total"] == 0
