"""The host's side in a process of its own, which a test may kill: a `HostNetwork` in the host's namespace.

    ip netns exec HOST python -m tests.system.network.agent CONTROL

The process stays a server that forks, so that an agent starts in milliseconds: each descriptor that comes over the
socket CONTROL is a conversation with a new agent. Its first line is a `Start`; then orders, an `Answer` to each.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import trio
from pydantic import BaseModel, Field, TypeAdapter

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import Uplink
from svc_nodeagent.hypervisor.traffic import HostTraffic
from svc_nodeagent.protocol import FailureCode, NetworkSpec, ProbeResult, TrafficResult

FAULT_VARIABLE = "SVC_FAULT_POINT"
_LONGEST_LINE = 16 * 1024 * 1024


class Start(BaseModel):
    """`networks` is what the records say when the agent starts, `ledger` where it keeps what it counted."""

    device_prefix: str
    table: str
    bridge: str | None = None
    networks: dict[UUID, NetworkSpec] = {}
    ledger: Path | None = None


class Restore(BaseModel):
    call: Literal["restore"] = "restore"


class Apply(BaseModel):
    """All of them at once."""

    call: Literal["apply"] = "apply"
    networks: dict[UUID, NetworkSpec]


class Remove(BaseModel):
    call: Literal["remove"] = "remove"
    vm_id: UUID


class Probe(BaseModel):
    call: Literal["probe"] = "probe"


class Traffic(BaseModel):
    call: Literal["traffic"] = "traffic"


class Arm(BaseModel):
    """From now on the agent is killed when it passes this point."""

    call: Literal["arm"] = "arm"
    fault_point: str


class Mend(BaseModel):
    call: Literal["mend"] = "mend"


class Clear(BaseModel):
    call: Literal["clear"] = "clear"


Order = Annotated[Restore | Apply | Remove | Probe | Traffic | Arm | Mend | Clear, Field(discriminator="call")]
_ORDER: TypeAdapter[Order] = TypeAdapter(Order)


class Failure(BaseModel):
    code: FailureCode
    message: str


class Answer(BaseModel):
    failure: Failure | None = None
    removed: tuple[str, ...] = ()
    probe: ProbeResult | None = None
    traffic: TrafficResult | None = None


class Killed(Exception):  # noqa: N818 - what happened, and often what was asked for
    """The agent ended without an answer."""


class Agent:
    """A conversation with one agent. Raises `HostError` as the agent did, and `Killed` when it has ended."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def restore(self) -> None:
        await self._order(Restore())

    async def apply(self, networks: dict[UUID, NetworkSpec]) -> None:
        await self._order(Apply(networks=networks))

    async def remove(self, vm_id: UUID) -> tuple[str, ...]:
        return (await self._order(Remove(vm_id=vm_id))).removed

    async def probe(self) -> ProbeResult:
        found = (await self._order(Probe())).probe
        assert found is not None
        return found

    async def traffic(self) -> TrafficResult:
        found = (await self._order(Traffic())).traffic
        assert found is not None
        return found

    async def arm(self, fault_point: str) -> None:
        await self._order(Arm(fault_point=fault_point))

    async def mend(self) -> None:
        await self._order(Mend())

    async def clear(self) -> None:
        await self._order(Clear())

    async def _order(self, order: Order) -> Answer:
        try:
            await self._stream.send_all(order.model_dump_json().encode() + b"\n")
            while b"\n" not in self._received:
                received = await self._stream.receive_some()
                if not received:
                    raise Killed
                self._received += received
        except trio.BrokenResourceError as error:
            raise Killed from error
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        answer = Answer.model_validate_json(line)
        if answer.failure is not None:
            raise HostError(answer.failure.code, answer.failure.message)
        return answer


class AgentServer:
    """The test's end of the process that forks agents."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @contextmanager
    def started(self, start: Start) -> Iterator[socket.socket]:
        """A new agent, for as long as the socket to it is open."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._control, [b"a"], [theirs.fileno()])
            ours.sendall(start.model_dump_json().encode() + b"\n")
            yield ours

    @asynccontextmanager
    async def agent(self, start: Start) -> AsyncIterator[Agent]:
        with self.started(start) as started:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(started)) as stream:
                yield Agent(stream)


async def converse(descriptor: int) -> None:
    """One agent's life: it ends when the test closes its end."""
    with socket.socket(fileno=os.dup(descriptor)) as first, first.makefile("rb") as lines:
        start = Start.model_validate_json(lines.readline())
        naming = Naming(device_prefix=start.device_prefix, table=start.table)
        uplink = None if start.bridge is None else Uplink(start.bridge)
        traffic = None if start.ledger is None else await HostTraffic.open(start.ledger, naming)
        before_removal = None if traffic is None else traffic.before_removal
        network = HostNetwork(naming, start.networks, uplink=uplink, before_removal=before_removal)
        with socket.socket(fileno=descriptor) as answers:
            while line := await trio.to_thread.run_sync(lines.readline, _LONGEST_LINE):
                answer = await perform(_ORDER.validate_json(line), network, traffic)
                await trio.to_thread.run_sync(answers.sendall, answer.model_dump_json().encode() + b"\n")


async def perform(order: Order, network: HostNetwork, traffic: HostTraffic | None) -> Answer:
    try:
        match order:
            case Restore():
                await network.restore()
            case Apply(networks=networks):
                await _apply(network, networks)
            case Remove(vm_id=vm_id):
                return Answer(removed=await network.remove(vm_id))
            case Probe():
                return Answer(probe=await network.probe())
            case Traffic():
                assert traffic is not None
                return Answer(traffic=await traffic.result())
            case Arm(fault_point=fault_point):
                os.environ[FAULT_VARIABLE] = fault_point
            case Mend():
                await network.mend()
            case Clear():
                await network.clear()
    except HostError as error:
        return Answer(failure=Failure(code=error.code, message=error.message))
    return Answer()


async def _apply(network: HostNetwork, networks: dict[UUID, NetworkSpec]) -> None:
    if len(networks) == 1:  # a failure is then not in a group
        for vm_id, spec in networks.items():
            await network.apply(vm_id, spec)
        return
    async with trio.open_nursery() as nursery:
        for vm_id, spec in networks.items():
            nursery.start_soon(network.apply, vm_id, spec)


def main(control: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # agents that have ended leave nothing behind
    with socket.socket(fileno=control) as requests:
        while True:
            _, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
            if not descriptors:
                return
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                trio.run(converse, descriptors[0])
                return
            os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
