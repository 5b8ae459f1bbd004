"""libvirt on Trio, by its own test driver: events arrive, a hung call hurts nobody else, nothing is left over."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import libvirt
import pytest
import trio
from trio.testing import MockClock

from svc_nodeagent.calls import note_calls
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import (
    CALL_TIMEOUT_SECONDS,
    THREADS,
    Connection,
    ConnectionLost,
    LifecycleEvent,
)
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.libvirt_loop import EVENT_LOOP
from svc_nodeagent.protocol import DomainState, FailureCode

TEST_DRIVER = "test:///default"
DOMAIN = "test"


@dataclass
class Heard:
    """A listener that remembers."""

    connected: int = 0
    events: list[int] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)

    def reconnected(self) -> None:
        self.connected += 1
        self.news.set()

    def lifecycle(self, event: LifecycleEvent) -> None:
        self.events.append(event.event)
        self.news.set()

    def guest_agent_connected(self, uuid: UUID, name: str) -> None:
        self.news.set()

    async def until(self, event: int) -> None:
        with trio.fail_after(60):
            while event not in self.events:
                self.news = trio.Event()
                await self.news.wait()


@asynccontextmanager
async def connected(heard: Heard, uri: str = TEST_DRIVER) -> AsyncIterator[Connection]:
    async with trio.open_nursery() as loop:
        await loop.start(EVENT_LOOP.run)
        async with trio.open_nursery() as nursery:
            connection = Connection(uri)
            await nursery.start(connection.run, heard)
            yield connection
            nursery.cancel_scope.cancel()
        loop.cancel_scope.cancel()


async def test_what_happens_to_a_guest_is_heard() -> None:
    heard = Heard()
    async with connected(heard) as connection:
        await connection.call(lambda libvirt_: libvirt_.lookupByName(DOMAIN).destroy())
        await heard.until(libvirt.VIR_DOMAIN_EVENT_STOPPED)
        await connection.call(lambda libvirt_: libvirt_.lookupByName(DOMAIN).create())
        await heard.until(libvirt.VIR_DOMAIN_EVENT_STARTED)
    assert heard.connected == 1


async def test_a_refusal_of_libvirt_names_its_reason() -> None:
    async with connected(Heard()) as connection:
        with pytest.raises(HostError) as refusal:
            await connection.call(lambda libvirt_: libvirt_.lookupByName("nobody"))
    assert refusal.value.code is FailureCode.NOT_FOUND


async def test_a_call_is_noted_for_a_trace_by_libvirts_own_name_with_what_went_wrong() -> None:
    async with connected(Heard()) as connection:
        calls = note_calls()
        await connection.call(lambda libvirt_: libvirt_.getHostname(), name="virConnectGetHostname")
        with pytest.raises(HostError):
            await connection.call(lambda libvirt_: libvirt_.lookupByName("nobody"), name="virDomainLookupByName")

    assert [(call.name, call.error) for call in calls] == [
        ("virConnectGetHostname", None),
        ("virDomainLookupByName", "not_found"),
    ]


async def test_a_call_that_hangs_fails_alone_and_others_go_on() -> None:
    release = threading.Event()
    async with connected(Heard()) as connection:
        try:
            with pytest.raises(HostError) as timed_out:
                await connection.call(lambda _: release.wait(), timeout=0.05)
            assert timed_out.value.code is FailureCode.TIMED_OUT
            assert connection.statistics()["busy"] == 1
            assert await connection.call(lambda libvirt_: libvirt_.getHostname())
        finally:
            release.set()


async def test_when_every_thread_hangs_a_caller_still_gets_an_answer_in_time() -> None:
    release = threading.Event()
    async with connected(Heard()) as connection:
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(THREADS):
                    nursery.start_soon(_times_out, connection, release)
            with pytest.raises(HostError) as timed_out:
                await connection.call(lambda libvirt_: libvirt_.getHostname(), timeout=0.05)
            assert timed_out.value.code is FailureCode.TIMED_OUT
        finally:
            release.set()


async def _times_out(connection: Connection, release: threading.Event) -> None:
    with pytest.raises(HostError):
        await connection.call(lambda _: release.wait(), timeout=0.05)


async def test_while_libvirt_is_away_calls_say_so_and_the_host_still_opens(
    autojump_clock: MockClock,
) -> None:
    connection = Connection("test:///nonexistent-description.xml")
    with pytest.raises(ConnectionLost) as lost:
        await connection.call(lambda libvirt_: libvirt_.getHostname(), timeout=5)
    assert lost.value.hint


@pytest.fixture
def unhurried_clock() -> MockClock:
    """Jumps only when nothing has happened for long, so that a thread at work is not taken for idle."""
    return MockClock(autojump_threshold=0.3)


async def test_an_order_that_libvirt_is_slow_at_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, unhurried_clock: MockClock
) -> None:
    release, create = threading.Event(), libvirt.virDomain.create

    def slow_create(domain: libvirt.virDomain) -> int:
        release.wait()
        return int(create(domain))

    async def release_after(seconds: float) -> None:
        await trio.sleep(seconds)
        release.set()

    monkeypatch.setattr(libvirt.virDomain, "create", slow_create)
    async with connected(Heard()) as connection, trio.open_nursery() as nursery:
        guests = Guests(connection)
        vm_id = UUID(await connection.call(lambda libvirt_: libvirt_.lookupByName(DOMAIN).UUIDString()))
        await guests.destroy(vm_id)
        nursery.start_soon(release_after, 10 * CALL_TIMEOUT_SECONDS)

        await guests.start(vm_id)

        assert trio.current_time() >= 10 * CALL_TIMEOUT_SECONDS
        assert await guests.state(vm_id) is DomainState.RUNNING


@pytest.mark.system
@pytest.mark.isolated
@pytest.mark.own_host
async def test_when_libvirtd_is_killed_and_started_again_the_host_goes_on(data_folder: Path) -> None:
    """A daemon of the test's own, serving libvirt's test driver."""
    heard, socket = Heard(), data_folder / "libvirt" / "libvirt-sock"
    data_folder.chmod(0o777)
    async with trio.open_nursery() as nursery:
        daemon = await nursery.start(private_daemon, data_folder, socket)
        async with connected(heard, f"test+unix:///default?socket={socket}") as connection:
            await connection.call(lambda libvirt_: libvirt_.lookupByName(DOMAIN).suspend())
            await heard.until(libvirt.VIR_DOMAIN_EVENT_SUSPENDED)
            daemon.kill()
            await daemon.wait()
            with pytest.raises(ConnectionLost):
                await connection.call(lambda libvirt_: libvirt_.getHostname(), timeout=2)
            await nursery.start(private_daemon, data_folder, socket)
            heard.events.clear()
            await connection.call(lambda libvirt_: libvirt_.lookupByName(DOMAIN).suspend())
            await heard.until(libvirt.VIR_DOMAIN_EVENT_SUSPENDED)
        nursery.cancel_scope.cancel()
    assert heard.connected == 2


async def private_daemon(folder: Path, socket: Path, *, task_status: trio.TaskStatus[trio.Process]) -> None:
    """Unprivileged, so that it has nothing to do with the libvirtd of this host."""
    socket.unlink(missing_ok=True)
    environment = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "PATH": "/usr/sbin:/usr/bin"}
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, ["libvirtd"], env=environment, user="nobody", check=False)
        process = await nursery.start(partial(start, capture_stderr=True))
        with trio.fail_after(30):
            while not socket.exists():
                await trio.sleep(0.05)
        task_status.started(process)


async def test_a_lost_connection_is_made_again_and_calls_wait_for_it() -> None:
    heard = Heard()
    async with connected(heard) as connection:
        broken = libvirt.libvirtError("client socket is closed")

        def lose(_: object) -> None:
            raise broken

        with pytest.raises(ConnectionLost):
            await connection.call(lose)
        with trio.fail_after(60):
            while heard.connected < 2:
                heard.news = trio.Event()
                await heard.news.wait()
        assert await connection.call(lambda libvirt_: libvirt_.getHostname())


async def test_a_closed_connection_leaves_nothing_in_the_event_loop() -> None:
    gc.collect()
    before = EVENT_LOOP.statistics()
    async with connected(Heard()) as connection:
        await connection.call(lambda libvirt_: libvirt_.getHostname())
    gc.collect()
    assert EVENT_LOOP.statistics() == before


async def test_only_one_loop_serves_libvirt() -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(EVENT_LOOP.run)
        with pytest.raises(RuntimeError):
            await EVENT_LOOP.run()
        nursery.cancel_scope.cancel()
