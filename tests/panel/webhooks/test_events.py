"""Events: written with what they tell of, for those who subscribed, in a payload that holds nothing else."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from uuid import UUID

import pytest

from svc_actors.panel.webhooks import Scalar, Subject, WebhookEvent, emit
from svc_actors.store import Database, Transaction
from svc_actors.webhooks.payload import LONGEST_TEXT, compose

EVENT = UUID("7a1f0b52-2f5c-4a53-9b0e-6f3f5b3c9e11")
INSTALL = UUID("00000000-0000-4000-8000-000000000001")
AT = datetime(2026, 11, 22, 11, 30, 0, 250_000, tzinfo=UTC)


def composed(data: dict[str, Scalar], subject: Subject | None = None) -> bytes:
    server = {"install_id": str(INSTALL)}
    return compose(WebhookEvent.SITE_CREATED, event_id=EVENT, at=AT, server=server, subject=subject, data=data)


async def endpoint(database: Database, *events: str, enabled: bool = True) -> UUID:
    """Straight into the database."""
    endpoint_id: UUID = await database.fetchval(
        "INSERT INTO webhook_endpoints (url, events, enabled, sealed_secret, last_four)"
        " VALUES ('https://receiver.example/', $1, $2, '\\x00', 'abcd') RETURNING id",
        list(events),
        enabled,
    )
    return endpoint_id


def test_there_are_the_thirteen_events_of_the_specification() -> None:
    assert {event.value for event in WebhookEvent} == {
        "backup.completed",
        "backup.failed",
        "backup.remote_failed",
        "ssl.issued",
        "ssl.failed",
        "health.critical",
        "site.created",
        "site.suspended",
        "site.unsuspended",
        "update.installed",
        "job.failed",
        "migration.completed",
        "recovery.completed",
    }


def test_a_payload_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "panel1")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")

    body = composed(
        {"type": "php", "size_bytes": 7, "first": True, "owner": None}, Subject("site", "s1", "bücher.example")
    )

    assert (
        body
        == (
            '{"id":"7a1f0b52-2f5c-4a53-9b0e-6f3f5b3c9e11","event":"site.created","at":"2026-11-22T11:30:00.250Z",'
            '"server":{"hostname":"panel1","install_id":"00000000-0000-4000-8000-000000000001","version":"1.2.3"},'
            '"subject":{"kind":"site","id":"s1","name":"bücher.example"},'
            '"data":{"type":"php","size_bytes":7,"first":true,"owner":null}}'
        ).encode()
    )


def test_a_payload_without_a_subject_has_none() -> None:
    assert set(json.loads(composed({}))) == {"id", "event", "at", "server", "data"}


@pytest.mark.parametrize("value", [{"a": 1}, [1], b"bytes", float("nan"), float("inf"), UUID(int=1), AT])
def test_data_are_flat_scalars(value: object) -> None:
    with pytest.raises(ValueError, match="scalars"):
        composed({"what": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("key", ["", "Site", "a-b", "a.b", "1st", "a" * 65])
def test_keys_of_data_are_plain_names(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        composed({key: 1})


def test_a_long_text_is_cut() -> None:
    [text] = json.loads(composed({"error": "x" * 5000}))["data"].values()

    assert len(text) == LONGEST_TEXT
    assert text.endswith("x…")


async def test_an_event_is_written_for_those_who_subscribed(panel_database: Database) -> None:
    everything = await endpoint(panel_database, "*")
    sites = await endpoint(panel_database, "site.created", "site.suspended")
    await endpoint(panel_database, "backup.failed")
    await endpoint(panel_database, "*", enabled=False)

    async with panel_database.transaction() as tx:
        event_id = await emit(tx, WebhookEvent.SITE_CREATED, subject=Subject("site", "s1", "a.example"), data={"n": 1})

    deliveries = await panel_database.fetch("SELECT * FROM webhook_deliveries")
    event = await panel_database.fetchone("SELECT * FROM webhook_events")
    install_id = await panel_database.fetchval("SELECT install_id FROM panel_installation")
    assert {row["endpoint_id"] for row in deliveries} == {everything, sites}
    assert {(row["event_id"], row["status"], row["attempts"]) for row in deliveries} == {(event_id, "pending", 0)}
    assert (event["id"], event["event"]) == (event_id, "site.created")
    said = json.loads(event["body"])
    assert said["id"] == str(event_id)
    assert said["server"]["install_id"] == str(install_id)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", said["server"]["version"])
    assert said["subject"] == {"kind": "site", "id": "s1", "name": "a.example"}


async def test_what_did_not_happen_is_not_told(panel_database: Database) -> None:
    await endpoint(panel_database, "*")

    async def fail(tx: Transaction) -> None:
        await emit(tx, WebhookEvent.SITE_CREATED)
        raise RuntimeError("the site could not be made")

    with pytest.raises(RuntimeError):
        await panel_database.transact(fail)

    assert await panel_database.fetchval("SELECT count(*) FROM webhook_events") == 0
    assert await panel_database.fetchval("SELECT count(*) FROM webhook_deliveries") == 0


async def test_an_event_that_nobody_subscribed_to_is_kept_in_the_history_alone(panel_database: Database) -> None:
    async with panel_database.transaction() as tx:
        await emit(tx, WebhookEvent.HEALTH_CRITICAL)

    assert await panel_database.fetchval("SELECT count(*) FROM webhook_events") == 1
    assert await panel_database.fetchval("SELECT count(*) FROM webhook_deliveries") == 0
