"""One key, one order: the work is done once and every caller gets the same answer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

import svc.registry.idempotency as idempotency
from svc.registry.idempotency import forget_expired, refuse_lost, run_idempotent
from svc.registry.operation import Context
from svc.registry.principal import Principal, Role
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, CommitMarks, Database, EventLog, Via
from svc_actors.store.failures import outcome_unknown
from svc_common.errors import ErrorCode, ServiceError, capacity
from tests.support.example_service import ExampleServices, Toy, ToyMakeRequest

ORDER = ToyMakeRequest(id="ball", size=1, idempotency_key="k")


def context(database: Database, token: UUID | None = None) -> Context[ExampleServices]:
    token = token or UUID(int=1)
    principal = Principal(user_id=UUID(int=2), email="a@b", role=Role.CUSTOMER, scopes=None, token_id=token)
    caller = Caller(
        actor_id=principal.user_id,
        actor="a@b",
        role="customer",
        via=Via.TOKEN,
        token_id=token,
        request_id="request",
        operation="toy.make",
    )
    services = ExampleServices(database, Sealer(bytes(32)), EventLog(database))
    return Context(principal=principal, caller=caller, services=services, response=Toy)


class Workshop:
    """Makes toys, each numbered, and can be slow or refuse."""

    def __init__(self) -> None:
        self.made = 0
        self.begun = trio.Event()
        self.may_end = trio.Event()
        self.refusal: Exception | None = None

    async def make(self) -> Toy:
        self.begun.set()
        await self.may_end.wait()
        if self.refusal is not None:
            raise self.refusal
        self.made += 1
        return Toy(id=f"toy {self.made}", size=1, note=str(uuid4()))

    @classmethod
    def quick(cls) -> Workshop:
        shop = cls()
        shop.may_end.set()
        return shop


async def test_the_second_call_gets_the_first_answer_as_a_replay(database: Database) -> None:
    shop = Workshop.quick()
    first, replayed_first = await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    second, replayed_second = await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    assert (second, shop.made) == (first, 1)
    assert (replayed_first, replayed_second) == (False, True)


async def test_without_a_key_every_call_is_an_order(database: Database) -> None:
    shop = Workshop.quick()
    for _ in range(2):
        await run_idempotent(context(database), key=None, request=ORDER, run=shop.make)
    assert shop.made == 2


async def test_another_request_under_the_same_key_is_a_conflict_and_nothing_happens(database: Database) -> None:
    shop = Workshop.quick()
    await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    other = ORDER.model_copy(update={"size": 2})
    with pytest.raises(ServiceError) as caught:
        await run_idempotent(context(database), key="k", request=other, run=shop.make)
    assert (caught.value.code, shop.made) == (ErrorCode.CONFLICT, 1)
    elsewhere = replace(context(database), caller=replace(context(database).caller, operation="toy.break"))
    with pytest.raises(ServiceError):
        await run_idempotent(elsewhere, key="k", request=ORDER, run=shop.make)


async def test_another_request_is_a_conflict_while_the_first_still_runs(database: Database) -> None:
    shop = Workshop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_idempotent(context(database), key="k", request=ORDER, run=shop.make))
        await shop.begun.wait()
        with pytest.raises(ServiceError) as caught:
            await run_idempotent(
                context(database), key="k", request=ORDER.model_copy(update={"size": 2}), run=shop.make
            )
        assert caught.value.code is ErrorCode.CONFLICT
        shop.may_end.set()


async def test_keys_of_different_tokens_are_different_keys(database: Database) -> None:
    shop = Workshop.quick()
    one, _ = await run_idempotent(context(database, UUID(int=1)), key="k", request=ORDER, run=shop.make)
    two, _ = await run_idempotent(context(database, UUID(int=9)), key="k", request=ORDER, run=shop.make)
    assert one != two


async def test_after_a_refusal_the_order_is_tried_again(database: Database) -> None:
    shop = Workshop.quick()
    shop.refusal = capacity("no room")
    with pytest.raises(ServiceError):
        await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    shop.refusal = None
    toy, replayed = await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    assert (toy.id, replayed) == ("toy 1", False)


async def test_after_a_defect_or_a_lost_caller_the_order_is_tried_again(database: Database) -> None:
    shop = Workshop.quick()
    shop.refusal = RuntimeError("defect")
    with pytest.raises(ExceptionGroup):
        await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    slow = Workshop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_idempotent(context(database), key="k", request=ORDER, run=slow.make))
        await slow.begun.wait()
        nursery.cancel_scope.cancel()
    toy, replayed = await run_idempotent(context(database), key="k", request=ORDER, run=Workshop.quick().make)
    assert (toy.id, replayed) == ("toy 1", False)


async def test_a_hundred_callers_at_once_make_one_toy(database: Database) -> None:
    shop = Workshop()
    answers: list[tuple[Toy, bool]] = []

    async def call() -> None:
        answers.append(await run_idempotent(context(database), key="k", request=ORDER, run=shop.make))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
        await shop.begun.wait()
        shop.may_end.set()
    assert shop.made == 1
    assert len({toy.note for toy, _ in answers}) == 1
    assert sorted(replayed for _, replayed in answers) == [False] + [True] * 99


async def test_a_claim_whose_process_died_is_taken_over_when_its_lease_runs_out(database: Database) -> None:
    dead = Workshop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_idempotent(context(database), key="k", request=ORDER, run=dead.make))
        await dead.begun.wait()
        # As the process left it: claimed, never answered, the lease no longer renewed.
        await database.execute("UPDATE idempotency_keys SET leased_until = now() - interval '1 second'")
        toy, replayed = await run_idempotent(context(database), key="k", request=ORDER, run=Workshop.quick().make)
        assert (toy.id, replayed) == ("toy 1", False)
        # The dead one's late words change nothing.
        dead.may_end.set()
    again, replayed = await run_idempotent(context(database), key="k", request=ORDER, run=Workshop.quick().make)
    assert (again, replayed) == (toy, True)


async def test_keys_whose_orders_the_database_has_lost_are_refused(database: Database, tmp_path: Path) -> None:
    """One is not known at all by now, of one the answer is lost, one has its answer."""
    database.marks = marks = CommitMarks.load(tmp_path)
    shop = Workshop.quick()
    for key in ("lost", "unanswered", "answered"):
        await run_idempotent(context(database), key=key, request=ORDER, run=shop.make)
    shop.refusal = capacity("full")
    with pytest.raises(ServiceError):
        await run_idempotent(context(database), key="refused", request=ORDER, run=shop.make)
    await database.execute("DELETE FROM idempotency_keys WHERE key = 'lost'")
    await database.execute(
        "UPDATE idempotency_keys SET answer = NULL, leased_until = now() - interval '1 s' WHERE key = 'unanswered'"
    )

    await database.transact(lambda tx: refuse_lost(tx, marks.keys))

    again = Workshop.quick()
    for key in ("lost", "unanswered"):
        with pytest.raises(ServiceError, match="lost its latest changes") as refused:
            await run_idempotent(context(database), key=key, request=ORDER, run=again.make)
        assert refused.value.code is ErrorCode.CONFLICT
    assert again.made == 0
    toy, replayed = await run_idempotent(context(database), key="answered", request=ORDER, run=again.make)
    assert (toy.id, replayed) == ("toy 3", True)
    toy, replayed = await run_idempotent(context(database), key="refused", request=ORDER, run=again.make)
    assert (toy.id, replayed) == ("toy 1", False)


async def test_a_key_is_remembered_before_anything_is_done_under_it_and_where_the_outcome_is_unknown(
    database: Database, tmp_path: Path
) -> None:
    database.marks = marks = CommitMarks.load(tmp_path)
    seen: list[list[tuple[str, str]]] = []

    async def make() -> Toy:
        seen.append(marks.keys)
        raise outcome_unknown()

    with pytest.raises(ServiceError):
        await run_idempotent(context(database), key="k", request=ORDER, run=make)
    assert seen == [marks.keys] == [[(f"token:{UUID(int=1)}", "k")]]


async def test_the_lease_of_work_that_goes_on_is_renewed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "LEASE", 0.3)
    shop = Workshop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_idempotent(context(database), key="k", request=ORDER, run=shop.make))
        await shop.begun.wait()
        first = await database.fetchval("SELECT leased_until FROM idempotency_keys")
        while await database.fetchval("SELECT leased_until FROM idempotency_keys") == first:
            await trio.lowlevel.checkpoint()
        shop.may_end.set()


async def test_an_answer_is_kept_sealed_for_a_day(database: Database) -> None:
    shop = Workshop.quick()
    toy, _ = await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    row = await database.fetchrow("SELECT answer, fingerprint FROM idempotency_keys")
    assert row is not None
    assert toy.note
    assert toy.note.encode() not in row["answer"]
    assert await forget_expired(database) == 0
    await database.execute("UPDATE idempotency_keys SET created_at = now() - interval '25 hours', leased_until = now()")
    later, replayed = await run_idempotent(context(database), key="k", request=ORDER, run=shop.make)
    assert (later.id, replayed) == ("toy 2", False)


async def test_random_calls_with_random_keys_make_one_toy_a_key(database: Database) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    made: dict[str, int] = {}
    answers: dict[str, set[str | None]] = {}

    def maker(key: str) -> Callable[[], Awaitable[Toy]]:
        async def make() -> Toy:
            for _ in range(chance.randrange(3)):
                await trio.lowlevel.checkpoint()
            if chance.random() < 0.2:
                raise capacity("no room just now")
            made[key] = made.get(key, 0) + 1
            return Toy(id=key, size=1, note=str(uuid4()))

        return make

    async def call(key: str) -> None:
        try:
            toy, _ = await run_idempotent(context(database), key=key, request=ORDER, run=maker(key))
        except ServiceError:
            return
        answers.setdefault(key, set()).add(toy.note)

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(call, f"key {chance.randrange(30)}")
    assert set(made.values()) == {1}, made
    assert all(len(notes) == 1 for notes in answers.values())
