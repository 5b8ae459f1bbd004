"""BEGIN goes out with the first statement of a transaction, and its answer is taken out of what comes back."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from svc_actors.store import Database
from svc_actors.store.transport import Link, Traffic
from tests.support.postgres_proxy import proxy_to

BEGUN = b"C\x00\x00\x00\x0aBEGIN\x00Z\x00\x00\x00\x05T"
PARAMETER = b"S\x00\x00\x00\x0bname\x00v\x00"
REPLY = b"2\x00\x00\x00\x04C\x00\x00\x00\x0dINSERT 0\x00Z\x00\x00\x00\x05T"


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
