"""What an operation's calls of the host are noted as, and for whom."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from svc_nodeagent.calls import host_call, note_calls
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import MOST_CALLS, Done, FailureCode, OperationId, OperationResult, Request, Result
from tests.nodeagent.core.test_dispatch import STOP, Agent, FakeHost, agent

TRACEPARENT = "00-5b8aa5a2d2c872e8321cf37308d69df2-051581bf3cb55c13-01"


async def many(report: Report) -> OperationResult:
    for number in range(MOST_CALLS + 10):
        with host_call(f"call {number}"):
            await trio.sleep(0.01)
    return Done()


async def result_of(it: Agent) -> Result:
    [result] = [frame for frame in await it.frames_until_quiet() if isinstance(frame, Result)]
    return result


def order(traceparent: str | None) -> Request:
    return Request(id=OperationId("a"), operation=STOP, timeout_seconds=60, traceparent=traceparent)


async def test_the_first_calls_of_a_traced_operation_are_told_until_they_are_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with agent(host=FakeHost(act=many)) as it:
        it.dispatcher.request(order(TRACEPARENT))
        first = await result_of(it)
        it.reconnect()
        again = await result_of(it)
        it.dispatcher.acknowledge([OperationId("a")])

        assert [call.name for call in first.calls] == [f"call {number}" for number in range(MOST_CALLS)]
        assert again == first


async def test_of_an_operation_that_is_not_traced_nothing_is_noted(autojump_clock: trio.testing.MockClock) -> None:
    async with agent(host=FakeHost(act=many)) as it:
        it.dispatcher.request(order(None))

        assert (await result_of(it)).calls == ()


async def test_programs_are_noted_by_their_names_and_failures_in_a_word() -> None:
    calls = note_calls()

    await run_program("/bin/true", "--private")
    with pytest.raises(HostError):
        await run_program("false")
    with pytest.raises(HostError), host_call("virDomainCreate"):
        raise HostError(FailureCode.CAPACITY, "a private reason")

    assert [(call.name, call.error) for call in calls] == [
        ("run true", None),
        ("run false", None),
        ("virDomainCreate", "capacity"),
    ]
    assert all(call.seconds >= 0 for call in calls)
