"""What a database's client says reaches the core whole, and no more of it than the core can hold: a view of a customer
says what it likes, also in the place of a table that the core reads."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from svc_webhost.databases import DatabaseError, client
from svc_webhost.databases.client import ask_client
from svc_webhost.databases.passwords import new_password
from svc_webhost.mariadb import owner

BOUND = 100_000


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_an_answer_without_end_is_refused_and_who_gives_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_BYTES", BOUND)
    marked = f"svc-test-{new_password()}"

    with trio.fail_after(20), pytest.raises(DatabaseError, match="more than 100,000 bytes"):
        await ask_client(shell(f"exec yes {marked}"), "")

    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and marked in command_of(pid)] == []


def command_of(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""  # It has ended.


async def test_errors_without_end_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_BYTES", BOUND)

    with trio.fail_after(20), pytest.raises(DatabaseError, match="more than 100,000 bytes"):
        await ask_client(shell("exec yes >&2"), "")


async def test_a_long_answer_to_long_statements_comes_whole() -> None:
    sql = "SELECT 1;\n" * 200_000

    assert await ask_client(("/bin/cat",), sql) == sql


async def test_bytes_that_are_no_text_are_replaced() -> None:
    assert await ask_client(shell(r"printf 'a\377b'"), "") == "a\N{REPLACEMENT CHARACTER}b"


async def test_a_client_that_does_not_read_says_why() -> None:
    with pytest.raises(DatabaseError, match=r"^no such user$"):
        await ask_client(shell("echo 'no such  user' >&2; exit 1"), "SELECT 1;\n" * 200_000)


async def test_a_client_that_is_killed_has_not_answered() -> None:
    with pytest.raises(DatabaseError, match=f"exit status -{signal.SIGKILL:d}"):
        await ask_client(shell("echo half; kill -9 $$"), "")


async def test_a_client_that_does_not_answer_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STATEMENT_SECONDS", 0.1)

    with trio.fail_after(20), pytest.raises(DatabaseError, match="did not complete the statement within"):
        await ask_client(("/bin/sleep", "600"), "")


async def test_the_client_of_an_owner_keeps_no_answer_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold all rows before it says the first of them."""
    seen: list[tuple[str, ...]] = []

    async def ask(command: tuple[str, ...], sql: str, environment: object) -> str:
        seen.append(command)
        await trio.lowlevel.checkpoint()
        return ""

    monkeypatch.setattr(owner, "ask_client", ask)
    await owner.Session(("--user=owner_s1001_shop",), {}).ask("SELECT 1")

    assert "--quick" in seen[0]
