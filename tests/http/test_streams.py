"""Event streams over the wire: in order, filtered, resumed; ended with the session and the service; never in each
other's way, however badly one of them is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import httpx
import pytest
import trio

import svc_http.exchange
import svc_http.server
import svc_http.streaming
from svc.registry.principal import Principal
from svc.registry.streaming import EventStream, View
from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import Database, EventLog, NewEvent, append
from svc_common.errors import ErrorCode, ServiceError
from tests.support.example_service import Everybody, Served, served
from tests.support.sse import reading

VERSIONS = ("http/1.1", "h2")


NODE = UUID(int=99)


async def emit(database: Database, *notes: str, administrators_only: bool = False, size: int = 0) -> None:
    async with database.transaction() as tx:
        for note in notes:
            await append(
                tx,
                NewEvent(
                    kind=ControllerEvent.VM,
                    subject=note,
                    project_id=UUID(int=7),
                    node_id=NODE,
                    administrators_only=administrators_only,
                    payload={"note": note, "filler": "x" * size},
                ),
            )


async def until_open(server: Served, count: int) -> None:
    with trio.fail_after(60):
        while len(server.app.streams) != count:
            await trio.sleep(0.01)


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_event_arrives_with_its_position_kind_and_payload(
    server: Served, database: Database, version: str
) -> None:
    async with reading(server, version) as reader:
        await until_open(server, 1)
        await emit(database, "hidden", administrators_only=True)
        await emit(database, "seen")
        event = await reader.next_event()
        data = json.loads(event["data"])
        assert (event["id"], event["event"]) == ("2", "vm")
        assert (data["id"], data["kind"], data["subject"], data["payload"]["note"]) == (2, "vm", "seen", "seen")
        assert data["project_id"] == str(UUID(int=7))


async def test_only_operators_are_told_the_node(server: Served, database: Database) -> None:
    async with (
        reading(server, "http/1.1", token="customer,read") as customer,
        reading(server, "http/1.1", token="staff,read") as staff,
    ):
        await until_open(server, 2)
        await emit(database, "seen")
        told, whole = await customer.next_event(), await staff.next_event()

        assert str(NODE) not in told["data"]
        assert "node_id" not in json.loads(told["data"])
        assert json.loads(whole["data"])["node_id"] == str(NODE)


async def test_what_happens_within_a_moment_comes_in_order_and_in_few_sends(
    server: Served, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svc_http.streaming, "COALESCE", 0.5)
    async with reading(server, "http/1.1") as reader:
        await until_open(server, 1)
        await emit(database, "first")
        seen = [json.loads((await reader.next_event())["data"])["subject"]]
        before = reader.received
        for number in range(20):
            await emit(database, f"note {number}")
        while len(seen) < 21:
            seen.append(json.loads((await reader.next_event())["data"])["subject"])

        assert seen == ["first", *(f"note {number}" for number in range(20))]
        assert reader.received - before <= 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_reader_resumes_where_it_left_off(server: Served, database: Database, version: str) -> None:
    await emit(database, *(f"note {number}" for number in range(20)))
    async with reading(server, version) as early:
        await until_open(server, 1)
        await emit(database, "note 20")
        while json.loads((await early.next_event())["data"])["subject"] != "note 20":
            pass
    async with reading(server, version, after=15) as reader:
        seen = [json.loads((await reader.next_event())["data"])["subject"] for _ in range(6)]
    assert seen == [f"note {number}" for number in range(15, 21)]


async def test_a_position_that_the_log_does_not_reach_tells_the_reader_to_begin_anew(
    server: Served, database: Database
) -> None:
    async with reading(server, "http/1.1", after=10_000) as reader:
        event = await reader.next_event()
        assert (event["event"], json.loads(event["data"])["payload"]) == ("system", {"reset": True})
        await until_open(server, 1)
        await emit(database, "next")
        assert json.loads((await reader.next_event())["data"])["subject"] == "next"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_hundred_readers_that_vanish_are_gone(server: Served, database: Database, version: str) -> None:
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        readers = []

        async def join() -> None:
            readers.append(await stack.enter_async_context(reading(server, version)))

        for _ in range(100):
            nursery.start_soon(join)
        await until_open(server, 100)
        for number, reader in enumerate(readers):
            if number != 42:
                reader.vanish()
        await until_open(server, 1)
        await emit(database, "still here")
        assert json.loads((await readers[42].next_event())["data"])["subject"] == "still here"


async def test_streams_of_one_person_past_the_limit_are_refused_and_others_are_not(
    server: Served, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svc_http.streaming, "MOST_OF_ONE", 3)
    async with AsyncExitStack() as stack:
        # Whatever the token: a person makes as many as they like
        tokens = ("customer,read", "customer,read,write", "customer,read")
        [first, *_] = [await stack.enter_async_context(reading(server, "http/1.1", token=token)) for token in tokens]
        await until_open(server, 3)
        for _ in range(2):
            assert await refused(server, "customer,read") == (429, "rate_limited", 3)

        eve = await stack.enter_async_context(reading(server, "http/1.1", token="eve:customer,read"))
        for _ in range(4):
            await stack.enter_async_context(reading(server, "http/1.1", token="staff,read"))
        await until_open(server, 8)
        await emit(database, "for everybody")
        for reader in (first, eve):
            assert json.loads((await reader.next_event())["data"])["subject"] == "for everybody"

        first.vanish()
        await until_open(server, 7)
        await stack.enter_async_context(reading(server, "h2"))
        await until_open(server, 8)
        assert (await refused(server, "customer,read"))[0] == 429


async def refused(server: Served, token: str) -> tuple[int, str, int]:
    """The answer's status, its error's code, and the limit that it names."""
    async with httpx.AsyncClient(base_url=server.url + "/api/v1", verify=server.trust, timeout=60) as client:
        answer = await client.get("/stream", headers={"Authorization": f"Bearer {token}"})
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["details"]["limit"]


async def test_streams_opened_at_once_are_counted_and_one_that_nobody_reads_gives_its_place_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svc_http.streaming, "MOST_OF_ONE", 3)
    streams, opened, limited = svc_http.streaming.Streams(), [], []

    async def views(principals: Sequence[Principal]) -> list[View | None]:
        await trio.lowlevel.checkpoint()
        return [View(lambda _: True, operator=False) for _ in principals]

    customer = await Everybody().by_token("customer,read")
    stream = EventStream(EventLog(database).subscribe, customer, views, None)

    async def join() -> None:
        try:
            opened.append(await streams.open(stream))
        except ServiceError as error:
            limited.append(error.code)

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(join)
        assert (len(opened), limited) == (3, [ErrorCode.RATE_LIMITED] * 7)
        limited.clear()
        while opened:
            # Its client has gone before the first chunk
            await opened.pop().aclose()


@pytest.fixture
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the server starts, whose first pause it is."""
    monkeypatch.setattr(svc_http.streaming, "RECHECK", 0.05)


@pytest.mark.usefixtures("asked_often")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stream_ends_when_its_session_does(server: Served, database: Database, version: str) -> None:
    async with reading(server, version) as reader:
        await until_open(server, 1)
        await database.execute("INSERT INTO settings (name, value) VALUES ('ended', 'true')")
        with trio.fail_after(60):
            assert await reader.ended()
    await until_open(server, 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_silent_stream_has_a_heartbeat(server: Served, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svc_http.streaming, "HEARTBEAT", 0.05)
    async with reading(server, version) as reader:
        beats = 0
        async for frame in reader.frames():
            beats += frame.endswith(b":")
            if beats == 3:
                break


@pytest.mark.parametrize("version", VERSIONS)
async def test_who_never_reads_is_cut_off_and_costs_the_others_nothing(
    database: Database, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(svc_http.exchange, "SEND_DEADLINE", 0.5)
    monkeypatch.setattr(svc_http.server, "UNREAD_DEADLINE", 0.5)
    async with (
        served(database, tmp_path) as server,
        reading(server, version, receive_buffer=4096),
        reading(server, version) as good,
    ):
        await until_open(server, 2)
        with trio.fail_after(30):
            number = 0
            while len(server.app.streams) == 2:
                await emit(database, f"note {number}", size=60_000)
                assert json.loads((await good.next_event())["data"])["subject"] == f"note {number}"
                number += 1
        assert number > 2


async def test_stopping_the_service_ends_its_streams(server: Served) -> None:
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(reading(server, version)) for version in VERSIONS * 3]
        await until_open(server, len(readers))
        server.stop.set()
        with trio.fail_after(svc_http.server.GRACE):
            for reader in readers:
                assert await reader.ended()
            await server.ended.wait()
