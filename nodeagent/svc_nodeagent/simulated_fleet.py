"""Many simulated nodes in one process, each with its own certificate, journal and connection: for load and fault tests.

A node's state is in its folder (`<folder>/<name>`), so a fleet that was killed comes back as the same nodes with the
same machines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import NAMESPACE_DNS, UUID, uuid5

import httpx
import trio

from svc_nodeagent.agent import Agent, OpenHost
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.enrol import EnrolmentRefused, enrol_over, refusal
from svc_nodeagent.host import Host, OpenStream
from svc_nodeagent.journal import Journal
from svc_nodeagent.simulated import Behaviour, SimulatedHost

_ENROLLING_AT_ONCE = 8


@dataclass
class Fleet:
    """A number of simulated nodes. A node gets its `machines` when it is first created."""

    folder: Path
    size: int
    machines: int = 0
    prefix: str = "sim"
    behaviour: Behaviour = field(default_factory=Behaviour)
    agents: list[Agent] = field(default_factory=list)

    @property
    def connected(self) -> int:
        return sum(agent.connected for agent in self.agents)

    def names(self) -> list[str]:
        return [f"{self.prefix}-{number:04}" for number in range(1, self.size + 1)]

    def folder_of(self, name: str) -> AgentFolder:
        return AgentFolder(self.folder / name)

    async def enrol(self, client: httpx.AsyncClient, joined: Callable[[str], None]) -> None:
        """Enrol every node without an identity. `client` trusts the controller, whose API is its base URL, and carries
        an administrator's credential. Raises `EnrolmentRefused` and httpx's errors."""
        limiter = trio.CapacityLimiter(_ENROLLING_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name in self.names():
                folder = self.folder_of(name)
                if not folder.enrolment.exists():
                    nursery.start_soon(self._join, client, folder, name, limiter, joined)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all agents until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, name in enumerate(self.names()):
                folder = self.folder_of(name)
                agent = Agent(folder, Journal.open(folder.journal), seed=number)
                self.agents.append(agent)
                nursery.start_soon(agent.run, self._opener(folder, name, number))
                await trio.lowlevel.checkpoint()
            task_status.started()

    async def _join(
        self,
        client: httpx.AsyncClient,
        folder: AgentFolder,
        name: str,
        limiter: trio.CapacityLimiter,
        joined: Callable[[str], None],
    ) -> None:
        async with limiter:
            answer = await client.post("/nodes/bootstrap", json={"name": name})
            if not answer.is_success:
                raise EnrolmentRefused(f"{name}: {refusal(answer)}")
            token = answer.json()["token"]
            await enrol_over(client, folder, token=token, hostname=name, host=self._host_uuid(name))
            joined(name)

    def _opener(self, folder: AgentFolder, name: str, number: int) -> OpenHost:
        @asynccontextmanager
        async def open_host(_: OpenStream) -> AsyncIterator[Host]:
            state = folder.path / "simulated.json"
            made = state.exists()
            behaviour = replace(self.behaviour, seed=self.behaviour.seed + number)
            async with SimulatedHost(name, self._host_uuid(name), behaviour, state_file=state) as host:
                if not made:
                    host.populate(self.machines)
                yield host

        return open_host

    def _host_uuid(self, name: str) -> UUID:
        return uuid5(NAMESPACE_DNS, f"{name}.{self.folder.resolve()}")
