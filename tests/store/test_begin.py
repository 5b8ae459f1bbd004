"""BEGIN goes out with the first statement of a transaction, and COMMIT with its events."""

from __future__ import annotations

import socket
from typing import Any

import asyncpg
import pytest

from svc_actors.store import Database, EventKind, NewEvent, append, migrate
from svc_actors.store.transport import Link, Traffic
from tests.support.postgres_proxy import proxy_to

BEGUN = b"C\x00\x00\x00\x0aBEGIN\x00Z\x00\x00\x00\x05T"
PARAMETER = b"S\x00\x00\x00\x0bname\x00v\x00"
REPLY = b"2\x00\x00\x00\x04C\x00\x00\x00\x0dINSERT 0\x00Z\x00\x00\x00\x05T"
ROLLED_BACK = b"C\x00\x00\x00\x0dROLLBACK\x00Z\x00\x00\x00\x05I"
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00Z\x00\x00\x00\x05I"
FAILED = b"E\x00\x00\x00\x05\x00Z\x00\x00\x00\x05E"


class Heard:
    """A protocol that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: Any) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@pytest.fixture
def ends() -> Any:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("pieces", [1, 7, 1000])
async def test_the_answer_to_begin_is_taken_out_however_it_arrives(
    ends: tuple[socket.socket, socket.socket], pieces: int
) -> None:
    ours, theirs = ends
    heard = Heard()
    link = Link(ours, heard, Traffic())

    link.send_ahead("BEGIN")
    link.write(b"statement")
    answer = PARAMETER + BEGUN + REPLY
    for start in range(0, len(answer), pieces):
        theirs.sendall(answer[start : start + pieces])
        link.receive()

    assert theirs.recv(100) == b"Q\x00\x00\x00\x0aBEGIN\x00statement"
    assert heard.data == PARAMETER + REPLY


async def test_a_begin_that_failed_breaks_the_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    heard = Heard()
    link = Link(ours, heard, Traffic())
    error = b"E\x00\x00\x00\x05\x00"

    link.send_ahead("BEGIN")
    link.write(b"statement")
    theirs.sendall(error + b"Z\x00\x00\x00\x05I" + REPLY)
    link.receive()

    assert heard.data == error
    assert link.is_closing()
    assert len(heard.lost) == 1


async def test_a_transaction_of_one_statement_takes_two_round_trips(database_url: str) -> None:
    sent: list[bytes | bytearray] = []
    async with proxy_to(database_url) as proxy, Database.open(proxy.url, size=1) as database:

        def note(piece: bytes | bytearray) -> bool:
            sent.append(piece)
            return False

        for _ in range(3):
            sent.clear()
            proxy.before = note
            async with database.transaction() as tx:
                assert await tx.fetchval("SELECT $1::int + 1", 1) == 2

        assert len(sent) == 2


async def test_a_transaction_without_a_statement_asks_the_server_for_nothing(database_url: str) -> None:
    sent: list[bytes | bytearray] = []
    async with proxy_to(database_url) as proxy, Database.open(proxy.url, size=1) as database:

        def note(piece: bytes | bytearray) -> bool:
            sent.append(piece)
            return False

        proxy.before = note
        async with database.transaction():
            pass
        with pytest.raises(ValueError, match="nothing"):
            async with database.transaction():
                raise ValueError("nothing was done")

        assert await database.fetchval("SELECT 1") == 1

    assert not any(b"BEGIN" in piece or b"COMMIT" in piece for piece in sent)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (BEGUN + REPLY + COMMITTED, REPLY[:-6] + COMMITTED),
        (REPLY + PARAMETER + COMMITTED + PARAMETER, REPLY[:-6] + PARAMETER + COMMITTED + PARAMETER),
        (FAILED + ROLLED_BACK, FAILED[:-6] + ROLLED_BACK),
    ],
)
async def test_the_answer_to_commit_is_joined_to_the_statements_however_it_arrives(
    ends: tuple[socket.socket, socket.socket], answer: bytes, told: bytes, pieces: int
) -> None:
    ours, theirs = ends
    heard = Heard()
    link = Link(ours, heard, Traffic())

    if answer.startswith(BEGUN):
        link.send_ahead("BEGIN")
    with link.send_behind("COMMIT"):
        link.write(b"statement")
    for start in range(0, len(answer), pieces):
        theirs.sendall(answer[start : start + pieces])
        link.receive()

    assert theirs.recv(100).endswith(b"statementQ\x00\x00\x00\x0bCOMMIT\x00")
    assert heard.data == told


async def test_a_command_is_not_sent_behind_a_later_statement(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    link = Link(ours, Heard(), Traffic())

    with pytest.raises(ValueError, match="arguments"), link.send_behind("COMMIT"):
        raise ValueError("the arguments cannot be encoded")
    link.write(b"statement")

    assert theirs.recv(100) == b"statement"


async def test_the_events_of_a_transaction_take_no_round_trip(database_url: str) -> None:
    sent: list[bytes | bytearray] = []
    async with proxy_to(database_url) as proxy, Database.open(proxy.url, size=1) as database:
        await migrate(database)

        def note(piece: bytes | bytearray) -> bool:
            sent.append(piece)
            return False

        with database.announcements.listener("svc_event_inbox", lambda _: None):
            for _ in range(3):
                sent.clear()
                proxy.before = note
                async with database.transaction() as tx:
                    await tx.fetchval("SELECT $1::int + 1", 1)
                    await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={}))
                    await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={}))

        assert len(sent) == 2
        assert await database.fetchval("SELECT count(*) FROM event_inbox") == 6


async def test_an_event_that_cannot_be_written_undoes_its_transaction_and_no_other(database: Database) -> None:
    await database.execute("CREATE TABLE entry (number int)")
    for number in range(3):
        async with database.transaction() as tx:
            await tx.execute("INSERT INTO entry VALUES ($1)", number)
            await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={}))

        with pytest.raises(asyncpg.DataError):  # noqa: PT012 - what raises is how the block ends
            async with database.transaction() as tx:
                await tx.execute("INSERT INTO entry VALUES ($1)", 100 + number)
                await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={"text": "\0"}))

    assert await database.fetchval("SELECT array_agg(number ORDER BY number) FROM entry") == [0, 1, 2]
    assert await database.fetchval("SELECT count(*) FROM event_inbox") == 3
    assert database.statistics().broken == 0


async def test_what_commit_itself_refuses_leaves_no_event(database: Database) -> None:
    await database.execute("CREATE TABLE entry (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    for attempt in range(3):
        with pytest.raises(asyncpg.UniqueViolationError):  # noqa: PT012 - what raises is how the block ends
            async with database.transaction() as tx:
                await tx.execute("INSERT INTO entry VALUES ($1), ($1)", attempt)
                await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={}))

    assert await database.fetchval("SELECT count(*) FROM event_inbox") == 0
    assert database.statistics().broken == 0
