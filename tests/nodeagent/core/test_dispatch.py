"""The dispatcher: once, joined, answered, cancelled; on Trio's autojump clock, with no network."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing

from svc_nodeagent.dispatch import UNCLAIMED_AFTER, Dispatcher, Outbox
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import (
    MAX_FRAME_BYTES,
    ConsoleOpen,
    DomainChanged,
    DomainResult,
    DomainState,
    Done,
    Failed,
    FailureCode,
    NodeOperation,
    NodePreflight,
    ObservedNetwork,
    OperationId,
    OperationResult,
    Outcome,
    ProbeResult,
    Progress,
    Request,
    Result,
    Succeeded,
    UpFrame,
    VmForceStop,
    VmReset,
)

VM = UUID(int=1)
STOP = VmForceStop(vm_id=VM)


@dataclass
class FakeHost:
    """Performs by `act`, and counts."""

    performed: int = 0
    act: Callable[[Report], Awaitable[OperationResult]] | None = None

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        self.performed += 1
        if self.act is not None:
            return await self.act(report)
        await trio.sleep(1)
        return DomainResult(vm_id=VM, state=DomainState.STOPPED)


@dataclass
class FakeCore:
    async def open_console(self, operation: ConsoleOpen) -> None:
        await trio.lowlevel.checkpoint()

    def renew_certificate(self) -> None:
        return None

    def complete_preflight(self, operation: NodePreflight, result: OperationResult) -> OperationResult:
        return result


@dataclass
class Agent:
    host: FakeHost
    journal: Journal
    dispatcher: Dispatcher
    outbox: Outbox = field(default_factory=Outbox)

    def ask(self, operation_id: str = "a", operation: NodeOperation = STOP, timeout: float = 60) -> None:
        self.dispatcher.request(Request(id=OperationId(operation_id), operation=operation, timeout_seconds=timeout))

    def reconnect(self) -> None:
        self.outbox = Outbox()
        self.dispatcher.attach(self.outbox)

    async def next_result(self) -> Outcome:
        with trio.fail_after(1000):
            while True:
                for frame in await self.outbox.take():
                    if isinstance(frame, Result):
                        return frame.outcome

    async def frames_until_quiet(self) -> list[UpFrame]:
        frames: list[UpFrame] = []
        with trio.move_on_after(10):
            while True:
                frames += await self.outbox.take()
        return frames


@asynccontextmanager
async def agent(journal: Journal | None = None, host: FakeHost | None = None) -> AsyncIterator[Agent]:
    host, journal = host or FakeHost(), journal or Journal.open(None)
    dispatcher = Dispatcher(host, journal, FakeCore())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        opened = Agent(host, journal, dispatcher)
        dispatcher.attach(opened.outbox)
        yield opened
        nursery.cancel_scope.cancel()


DONE = Succeeded(result=DomainResult(vm_id=VM, state=DomainState.STOPPED))


async def test_a_request_repeated_while_it_runs_joins_the_run(autojump_clock: trio.testing.MockClock) -> None:
    async with agent() as it:
        for _ in range(3):
            it.ask()
            await trio.sleep(0.1)
        assert await it.next_result() == DONE
        assert it.host.performed == 1


async def test_a_request_repeated_after_its_end_is_answered_from_the_journal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent() as it:
        it.ask()
        assert await it.next_result() == DONE
        it.ask()
        assert await it.next_result() == DONE
        assert it.host.performed == 1


async def test_every_outcome_is_told_again_on_each_connection_until_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent() as it:
        it.ask()
        assert await it.next_result() == DONE
        for _ in range(3):
            it.reconnect()
            assert await it.next_result() == DONE
        it.dispatcher.acknowledge([OperationId("a")])
        it.reconnect()
        assert await it.frames_until_quiet() == []
        assert it.dispatcher.unacknowledged == ()


async def test_work_goes_on_without_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with agent() as it:
        it.ask()
        await trio.sleep(0.1)
        it.dispatcher.detach(it.outbox)
        await trio.sleep(5)
        assert it.dispatcher.unacknowledged == ("a",)
        it.reconnect()
        assert await it.next_result() == DONE


async def test_progress_comes_before_the_result_it_leads_to(autojump_clock: trio.testing.MockClock) -> None:
    async def act(report: Report) -> OperationResult:
        await report(150, "too much")
        return Done()

    async with agent(host=FakeHost(act=act)) as it:
        it.ask()
        frames = await it.frames_until_quiet()
    assert [frame.frame for frame in frames] == ["progress", "result"]
    assert isinstance(frames[0], Progress)
    assert frames[0].percent == 100


async def test_a_host_that_hangs_is_given_up_when_the_time_has_passed(autojump_clock: trio.testing.MockClock) -> None:
    async def act(_: Report) -> OperationResult:
        await trio.sleep_forever()
        raise AssertionError

    async with agent(host=FakeHost(act=act)) as it:
        it.ask(timeout=30)
        outcome = await it.next_result()
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.TIMED_OUT


async def test_an_answer_that_fits_no_frame_is_not_told(autojump_clock: trio.testing.MockClock) -> None:
    """It would end this connection, and every one on which it is told again."""

    async def act(_: Report) -> OperationResult:
        await trio.lowlevel.checkpoint()
        told = ObservedNetwork(vm_id=VM, generation=1, addresses=(), isolated=False, differences=("x" * 4_000,))
        return ProbeResult(taps=(), machines=(told,) * (MAX_FRAME_BYTES // 4_000), ruleset_digest="")

    async with agent(host=FakeHost(act=act)) as it:
        it.ask()
        outcome = await it.next_result()
    assert isinstance(outcome, Failed)
    assert "larger than it can send" in outcome.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HostError(FailureCode.CAPACITY, "no room"), FailureCode.CAPACITY),
        (RuntimeError("a bug of the host"), FailureCode.HOST),
    ],
)
async def test_a_failing_host_ends_the_operation_and_not_the_agent(
    autojump_clock: trio.testing.MockClock, error: Exception, code: FailureCode
) -> None:
    async def act(_: Report) -> OperationResult:
        await trio.lowlevel.checkpoint()
        raise error

    async with agent(host=FakeHost(act=act)) as it:
        it.ask("a")
        outcome = await it.next_result()
        it.host.act = None
        it.ask("b")
        assert await it.next_result() == DONE
    assert isinstance(outcome, Failed)
    assert outcome.code is code


async def test_a_cancelled_operation_stops_and_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with agent() as it:
        it.ask()
        await trio.sleep(0.5)
        it.dispatcher.cancel(OperationId("a"))
        outcome = await it.next_result()
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.CANCELLED


async def test_a_cancellation_that_overtakes_its_request_keeps_it_from_running(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent() as it:
        it.dispatcher.cancel(OperationId("a"))
        outcome = await it.next_result()
        it.ask()
        assert await it.next_result() == outcome
        assert it.host.performed == 0
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.CANCELLED


async def test_what_an_earlier_process_began_is_run_when_the_controller_asks_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = Journal.open(None)
    journal.started.add(OperationId("a"))
    async with agent(journal) as it:
        assert it.dispatcher.unacknowledged == ("a",)
        it.ask()
        assert await it.next_result() == DONE
        assert it.host.performed == 1


async def test_what_an_earlier_process_began_and_nobody_asks_for_was_interrupted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = Journal.open(None)
    journal.started |= {OperationId("asked"), OperationId("forgotten")}
    async with agent(journal) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.dispatcher.give_up_unclaimed, tuple(journal.started))
        it.ask("asked")
        await trio.sleep(UNCLAIMED_AFTER + 5)
    outcome = journal.outcomes[OperationId("forgotten")]
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.INTERRUPTED
    assert journal.outcomes[OperationId("asked")] == DONE


async def test_nothing_is_begun_that_cannot_be_written_down(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent() as it:

        async def full(*_: object, **__: object) -> None:
            await trio.lowlevel.checkpoint()
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(it.journal, "start", full)
        it.ask()
        outcome = await it.next_result()
        assert it.host.performed == 0
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.HOST


async def test_an_outcome_waits_for_the_disk_and_is_told_when_it_is_written(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent() as it:
        real, failures = it.journal.finish, [OSError(errno.ENOSPC, "No space left on device")] * 3

        async def full(operation_id: OperationId, outcome: Outcome, *, durable: bool = True) -> None:
            if failures:
                raise failures.pop()
            await real(operation_id, outcome, durable=durable)

        monkeypatch.setattr(it.journal, "finish", full)
        it.ask()
        assert await it.next_result() == DONE
        assert it.host.performed == 1
        assert not failures


async def test_only_the_last_state_of_a_guest_is_told_after_a_disconnection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent() as it:
        it.dispatcher.detach(it.outbox)
        for state in (DomainState.STOPPED, DomainState.RUNNING, DomainState.CRASHED):
            it.dispatcher.domain_changed(DomainChanged(vm_id=VM, state=state, reason="", at=datetime.now(UTC)))
        it.reconnect()
        (frame,) = await it.frames_until_quiet()
    assert isinstance(frame, DomainChanged)
    assert frame.state is DomainState.CRASHED


async def test_an_agent_told_to_stop_lets_what_runs_end_and_begins_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent() as it:
        it.ask("a")
        await trio.sleep(0.1)
        await it.dispatcher.stop(patience=10)
        it.ask(str(uuid4()))
        assert await it.next_result() == DONE
        assert it.host.performed == 1


async def test_a_reset_that_an_earlier_process_had_begun_is_not_done_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = Journal.open(None)
    await journal.start(OperationId("a"))
    async with agent(journal) as it:
        it.ask(operation=VmReset(vm_id=VM))
        outcome = await it.next_result()
        assert isinstance(outcome, Failed)
        assert outcome.code is FailureCode.INTERRUPTED
        assert it.host.performed == 0


async def test_stopping_does_not_outwait_a_cancellation(autojump_clock: trio.testing.MockClock) -> None:
    async with agent() as it:
        it.dispatcher.cancel(OperationId("unseen"))
        before = trio.current_time()
        await it.dispatcher.stop(60)
        assert trio.current_time() - before < 60


async def test_what_an_earlier_process_may_have_done_is_not_said_to_be_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = Journal.open(None)
    await journal.start(OperationId("a"))
    async with agent(journal) as it:
        it.ask()
        await trio.sleep(0.1)
        it.dispatcher.cancel(OperationId("a"))
        outcome = await it.next_result()
    assert isinstance(outcome, Failed)
    assert outcome.code is FailureCode.INTERRUPTED
    assert "may have been done" in outcome.message
