"""Who gets a ticket, and what a ticket is good for."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.machines.consoles import ConsoleKind, Grant, redeem
from tests.support.console import ConsoleHarness


async def test_of_fifty_redeems_of_one_ticket_one_succeeds(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    ticket = (await house.ticket(token=token)).rsplit("/", 1)[1]
    outcomes: Counter[bool] = Counter()

    async def try_it() -> None:
        outcomes[isinstance(await redeem(house.database, ticket, session_cookie=None), Grant)] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(try_it)
    assert outcomes == {True: 1, False: 49}


async def test_a_ticket_is_bound_to_its_machine_and_kind(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    ticket = (await house.ticket(token=token, kind="vnc")).rsplit("/", 1)[1]
    grant = await redeem(house.database, ticket, session_cookie=None)
    assert grant is not None
    assert (grant.vm_id, grant.kind) == (house.vm_id, ConsoleKind.VNC)


async def test_an_expired_ticket_opens_nothing(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    ticket = (await house.ticket(token=token)).rsplit("/", 1)[1]
    await house.database.execute("UPDATE console_tickets SET expires_at = now()")
    assert await redeem(house.database, ticket, session_cookie=None) is None


async def test_a_session_ticket_opens_nothing_beside_another_session(house: ConsoleHarness) -> None:
    user_id = await house.person()
    mine, other = await house.session(user_id), await house.session(user_id)
    ticket = (await house.ticket(cookie=mine)).rsplit("/", 1)[1]
    assert await redeem(house.database, ticket, session_cookie=other) is None
    assert await redeem(house.database, ticket, session_cookie=None) is None
    assert await redeem(house.database, ticket, session_cookie=mine) is not None


async def test_the_end_of_a_session_takes_its_tickets_along(house: ConsoleHarness) -> None:
    cookie = await house.session(await house.person())
    ticket = (await house.ticket(cookie=cookie)).rsplit("/", 1)[1]
    await house.database.execute("DELETE FROM sessions")
    assert await redeem(house.database, ticket, session_cookie=cookie) is None


async def test_the_database_holds_no_usable_ticket(house: ConsoleHarness) -> None:
    ticket = (await house.ticket(token=await house.token(await house.person()))).rsplit("/", 1)[1]
    row = await house.database.fetchrow("SELECT console_tickets::text AS text FROM console_tickets")
    assert row is not None
    assert ticket not in row["text"]
    assert len(ticket) >= 43


async def test_a_ticket_is_written_in_the_audit(house: ConsoleHarness) -> None:
    user_id = await house.person()
    await house.ticket(token=await house.token(user_id), kind="vnc")
    row = await house.database.fetchrow("SELECT * FROM audit WHERE operation = 'vm.console'")
    assert row is not None
    assert (row["actor_id"], row["target_id"], row["details"]) == (user_id, str(house.vm_id), {"kind": "vnc"})


@pytest.mark.parametrize("status", ["creating", "stopped", "deleting", "failed"])
async def test_a_machine_that_is_not_running_has_no_console(house: ConsoleHarness, status: str) -> None:
    await house.database.execute("UPDATE vms SET status = $1", status)
    answer = await house.asked(token=await house.token(await house.person()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


async def test_a_console_on_an_offline_node_is_unavailable(house: ConsoleHarness) -> None:
    house.gateway.online = False
    answer = await house.asked(token=await house.token(await house.person()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


async def test_a_foreign_machine_is_not_found(house: ConsoleHarness) -> None:
    answer = await house.asked(token=await house.token(await house.person(member=False)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_support_session_gets_no_console(house: ConsoleHarness) -> None:
    operator, customer = await house.person("administrator"), await house.person()
    cookie = await house.session(customer)
    await house.database.execute(
        """WITH begun AS (INSERT INTO impersonations (operator_id, customer_id, reason, expires_at, return_until)
                          VALUES ($1, $2, 'to help', now() + interval '30 minutes', now() + interval '1 hour')
                          RETURNING id)
           UPDATE sessions SET impersonation_id = (SELECT id FROM begun)""",
        operator,
        customer,
    )
    answer = await house.asked(cookie=cookie)
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, "a support session can look, not act")


async def test_an_unknown_kind_is_invalid(house: ConsoleHarness) -> None:
    answer = await house.asked(token=await house.token(await house.person()), kind="rdp")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")


async def test_a_made_up_ticket_opens_nothing(house: ConsoleHarness) -> None:
    assert await redeem(house.database, uuid4().hex, session_cookie=None) is None
