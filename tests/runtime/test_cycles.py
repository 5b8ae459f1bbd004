"""Asks that could only wait for each other are refused at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorSystem, AskCycle


class Peer(Actor):
    """Asks its way along a list of keys; waits before each ask when told to."""

    async def pass_on(self, onward: Sequence[str], wait: float = 0.0) -> str:
        await trio.sleep(wait)
        if not onward:
            return self.key
        return self.key + await self.system.ref(Peer, onward[0]).ask(Peer.pass_on, onward[1:], wait)

    async def pass_on_in_a_child_task(self, onward: Sequence[str]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pass_on, onward)

    async def ask_from_a_task_elsewhere(
        self, elsewhere: trio.Nursery, onward: Sequence[str], answers: list[str], lasts: float = 0.0
    ) -> None:
        """The nursery is somebody else's, so what is started there is not waited for, and may outlive this handler."""

        async def ask() -> None:
            answers.append(await self.system.ref(Peer, onward[0]).ask(Peer.pass_on, onward[1:]))

        elsewhere.start_soon(ask)
        await trio.sleep(lasts)

    async def tell_on(self, to: str) -> None:
        self.system.ref(Peer, to).tell(Peer.pass_on, [])


@pytest.fixture
def peers(system: ActorSystem) -> ActorSystem:
    system.register(Peer, lambda key: Peer())
    return system


@pytest.mark.parametrize("chain", ["aa", "aba", "abca", "abcdeb"])
async def test_a_cycle_of_any_length_is_refused_at_once(peers: ActorSystem, chain: str) -> None:
    began = trio.current_time()
    with pytest.raises(AskCycle) as refusal:
        await peers.ref(Peer, chain[0]).ask(Peer.pass_on, chain[1:])
    assert trio.current_time() == began
    ring = chain[chain.index(chain[-1]) :]
    assert refusal.value.path == (f"Peer:{ring[-2]}", *(f"Peer:{key}" for key in ring[:-1]))


async def test_two_that_ask_each_other_at_the_same_time_do_not_deadlock(peers: ActorSystem) -> None:
    outcomes: list[str] = []

    async def start(chain: str) -> None:
        try:
            outcomes.append(await peers.ref(Peer, chain[0]).ask(Peer.pass_on, chain[1:], 1.0))
        except AskCycle:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, "ab")
        nursery.start_soon(start, "ba")
    assert sorted(outcomes)[-1] == "refused"
    assert len(set(outcomes)) == 2, "one is refused, so that the other gets its answer"


async def test_a_cycle_through_a_child_task_of_a_handler_is_refused(peers: ActorSystem) -> None:
    with pytest.raises(AskCycle):
        await peers.ref(Peer, "a").ask(Peer.pass_on_in_a_child_task, "ba")


async def test_a_chain_without_a_ring_is_no_cycle(peers: ActorSystem) -> None:
    assert await peers.ref(Peer, "a").ask(Peer.pass_on, "bcd") == "abcd"


async def test_asks_that_meet_at_one_actor_are_no_cycle(peers: ActorSystem) -> None:
    answers: list[str] = []

    async def start(chain: str) -> None:
        answers.append(await peers.ref(Peer, chain[0]).ask(Peer.pass_on, chain[1:], 1.0))

    async with trio.open_nursery() as nursery:
        for chain in ("ac", "bc", "dbc"):
            nursery.start_soon(start, chain)
    assert sorted(answers) == ["ac", "bc", "dbc"]


async def test_an_asker_that_gave_up_closes_no_cycle(peers: ActorSystem) -> None:
    class Impatient(Actor):
        async def try_briefly(self) -> str:
            with trio.move_on_after(1):
                await self.system.ref(Slow, "s").ask(Slow.sleep)
            await trio.sleep(10)
            return "went on"

        async def ping(self) -> str:
            return "pong"

    class Slow(Actor):
        async def sleep(self) -> str:
            await trio.sleep(5)
            return await self.system.ref(Impatient, "i").ask(Impatient.ping)

    peers.register(Impatient, lambda key: Impatient())
    peers.register(Slow, lambda key: Slow())
    answers: list[str] = []

    async def begin() -> None:
        answers.append(await peers.ref(Impatient, "i").ask(Impatient.try_briefly))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await trio.sleep(2)
        assert await peers.ref(Slow, "s").ask(Slow.sleep) == "pong"
    assert answers == ["went on"]


async def test_a_task_that_outlives_its_handler_asks_as_anybody_does(peers: ActorSystem) -> None:
    answers: list[str] = []

    async with trio.open_nursery() as elsewhere:
        await peers.ref(Peer, "a").ask(Peer.ask_from_a_task_elsewhere, elsewhere, "ba", answers)
        await wait_all_tasks_blocked()

    assert answers == ["ba"]


async def test_a_task_elsewhere_asks_as_anybody_does_while_its_handler_goes_on(peers: ActorSystem) -> None:
    answers: list[str] = []

    async with trio.open_nursery() as elsewhere:
        await peers.ref(Peer, "a").ask(Peer.ask_from_a_task_elsewhere, elsewhere, "ba", answers, 5.0)

    assert answers == ["ba"]


async def test_actors_may_tell_each_other_in_a_ring(peers: ActorSystem) -> None:
    await peers.ref(Peer, "a").ask(Peer.tell_on, "a")
    await wait_all_tasks_blocked()
    assert peers.statistics().kinds["Peer"].waiting == 0
