"""A host that takes in a guest waits for no other host for ever, whatever the network does."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import trio
import trio.testing

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import live_receiving, live_words
from svc_nodeagent.protocol import CpuMode, FailureCode, LiveStreams, VmLiveReceive
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import create
from tests.support.live_hosts import Case, Failure, LiveHost

BOOT_DATA = b'{"password_hash":null,"seed_bytes":4}\nseed'


@pytest.fixture
async def case(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    for module in (live_words, live_receiving):
        monkeypatch.setattr(module, "READY_SECONDS", 0.3)
    monkeypatch.setattr(live_receiving, "ARRIVAL_SECONDS", 0.3)
    with tempfile.TemporaryDirectory(prefix="live-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        await trio.run_process(["qemu-img", "create", "-q", "-f", "qcow2", str(folder / "base.qcow2"), "1M"])
        case = Case("", "streams", Failure.SILENT, None, nursery)
        case.source = case.target = LiveHost(
            "target",
            uuid4(),
            Behaviour(seed=1),
            folder=folder / "host",
            image=folder / "base.qcow2",
            case=case,
            run_folder=folder / "run" / "live",
        )
        async with case.target.libvirt.running():
            yield case


@pytest.mark.parametrize("said", [b"", BOOT_DATA], ids=["before its boot data", "before its libvirt"])
async def test_a_source_that_falls_silent_ends_what_the_target_waits_for_and_leaves_nothing(
    case: Case, said: bytes
) -> None:
    far: list[trio.abc.Stream] = []

    async def dialled(_: str) -> trio.abc.Stream:
        near, other = trio.testing.memory_stream_pair()
        if said and not far:
            await other.send_all(said)
        far.append(other)
        return near

    async def report(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    case.target.use(lambda token: dialled(token))
    asked = create(case.vm_id)
    tokens = LiveStreams(libvirt="a", memory="b", disks=("c",))
    receive = VmLiveReceive(machine=asked.machine, image=asked.image, cpu_mode=CpuMode.DEFAULT, streams=tokens)
    case.links["streams"] = _Open()  # type: ignore[assignment]

    with trio.fail_after(10), pytest.raises(HostError) as refused:
        await case.target.perform(receive, report)

    assert refused.value.code is FailureCode.INTERRUPTED
    assert not case.has(case.target)


class _Open:
    """A link that does nothing to its streams."""

    async def open(self, open_stream: object, token: str) -> trio.abc.Stream:
        return await open_stream(token)  # type: ignore[operator, no-any-return]
