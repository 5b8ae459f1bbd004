"""What /dev/kvm may be on a host, and what guests run under then: decided as QEMU's own account finds it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.acceleration import DEVICE, EMULATOR, Acceleration, qemu_user
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.protocol import (
    CheckStatus,
    ConsoleKind,
    DomainResult,
    DomainState,
    NodePreflight,
    PreflightResult,
    VmCreate,
    VmDelete,
)
from tests.nodeagent.hypervisor.builders import FileStream, image, machine, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader

# Root, and the accounts of libvirt's packages
pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PATIENCE = 400.0
"""Seconds. A start takes two minutes where libvirt probes QEMU a dozen times over it, each for 8 s."""

BOOTS, HANGS = "exit 85", "exec sleep 600"
"""What a stand-in for QEMU does under KVM: the guest leaves by its exit port, or never gets past its firmware."""
EMULATES = f"exec {EMULATOR} $(echo \"$@\" | sed 's/-accel kvm/-accel tcg/; s/-cpu host/-cpu max/')"
"""A processor that is whole, wherever the test runs."""


@dataclass
class StandIn:
    """A device and an emulator of the test's own."""

    acceleration: Acceleration

    def is_a_device(self, mode: int, group: int = 0) -> None:
        device = self.acceleration.device
        device.touch()
        os.chown(device, 0, group)
        device.chmod(mode)

    def qemu(self, script: str) -> None:
        emulator = Path(self.acceleration.emulator)
        emulator.write_text(f'#!/bin/sh\necho "$@" >>{emulator}.ran\n{script}\n')
        emulator.chmod(0o755)
        ran = Path(f"{emulator}.ran")
        ran.touch()
        ran.chmod(0o666)

    def runs(self) -> int:
        return len(Path(f"{self.acceleration.emulator}.ran").read_text().splitlines())


@pytest.fixture
def stand_in(data_folder: Path) -> StandIn:
    """Where a guest would boot, if it came to that."""
    made = StandIn(
        Acceleration(
            data_folder / "accelerator.json",
            device=data_folder / "kvm",
            emulator=data_folder / "qemu",
            probe_seconds=60.0,
        )
    )
    made.qemu(BOOTS)
    return made


async def test_a_device_that_only_root_may_open_is_not_used_nor_tried(stand_in: StandIn) -> None:
    stand_in.is_a_device(0o600)

    verdict = await stand_in.acceleration.verdict()

    assert verdict.accelerator is Accelerator.TCG
    assert "QEMU's account may not open" in verdict.reason
    assert stand_in.runs() == 0


async def test_a_device_of_qemus_group_is_used_where_a_guest_boots_on_it(stand_in: StandIn) -> None:
    stand_in.is_a_device(0o660, group=qemu_user().gid)

    assert (await stand_in.acceleration.verdict()).accelerator is Accelerator.KVM


async def test_without_a_device_guests_are_emulated(stand_in: StandIn) -> None:
    verdict = await stand_in.acceleration.verdict()

    assert verdict.accelerator is Accelerator.TCG
    assert verdict.reason.startswith("there is no")
    assert stand_in.runs() == 0


async def test_a_device_whose_guests_never_get_past_their_firmware_is_not_used(stand_in: StandIn) -> None:
    stand_in.is_a_device(0o660, group=qemu_user().gid)
    stand_in.qemu(HANGS)

    verdict = await replace(stand_in.acceleration, probe_seconds=0.5).verdict()

    assert verdict.accelerator is Accelerator.TCG
    assert "did not boot within 0.5 s" in verdict.reason


async def test_the_guest_that_is_tried_gets_through_on_a_whole_processor(data_folder: Path, stand_in: StandIn) -> None:
    stand_in.is_a_device(0o660, group=qemu_user().gid)
    stand_in.qemu(EMULATES)
    patient = Acceleration(
        data_folder / "patient.json", device=stand_in.acceleration.device, emulator=stand_in.acceleration.emulator
    )

    verdict = await patient.verdict()

    assert (verdict.accelerator, verdict.reason) == (Accelerator.KVM, "a guest booted under KVM")


async def test_a_verdict_that_another_guest_led_to_is_found_anew(stand_in: StandIn) -> None:
    stand_in.is_a_device(0o660, group=qemu_user().gid)
    found = await stand_in.acceleration.verdict()
    before = found.model_copy(update={"guest": "the release before tried less"})
    stand_in.acceleration.cache.write_text(before.model_dump_json())

    await stand_in.acceleration.verdict()

    assert stand_in.runs() == 2


async def test_a_verdict_is_kept_until_the_device_changes_hands(stand_in: StandIn) -> None:
    stand_in.is_a_device(0o660, group=qemu_user().gid)
    await stand_in.acceleration.verdict()
    restarted = Acceleration(
        stand_in.acceleration.cache, device=stand_in.acceleration.device, emulator=stand_in.acceleration.emulator
    )

    kept = await restarted.verdict()
    stand_in.is_a_device(0o600)
    closed = await restarted.verdict()
    stand_in.is_a_device(0o660, group=qemu_user().gid)
    given_back = await restarted.verdict()

    verdicts = [verdict.accelerator for verdict in (kept, closed, given_back)]
    assert verdicts == [Accelerator.KVM, Accelerator.TCG, Accelerator.KVM]
    assert stand_in.runs() == 2


# The kernel's own device, put into each state in turn, whatever this machine has under its name


@contextmanager
def device_absent() -> Iterator[None]:
    away = DEVICE.with_name("kvm.away")
    there = DEVICE.exists()
    if there:
        DEVICE.rename(away)
    try:
        yield
    finally:
        if there:
            away.rename(DEVICE)


@contextmanager
def _device(number: int, gid: int, mode: int) -> Iterator[None]:
    with device_absent():
        os.mknod(DEVICE, stat.S_IFCHR | 0o600, number)
        os.chown(DEVICE, 0, gid)
        DEVICE.chmod(mode)
        try:
            yield
        finally:
            DEVICE.unlink()


KVM = os.makedev(10, 232)
OTHER = os.makedev(1, 3)
"""It opens, and no guest ever runs on it."""


def device_closed() -> AbstractContextManager[None]:
    """As the kernel makes it: root's alone."""
    return _device(KVM, 0, 0o600)


def device_open() -> AbstractContextManager[None]:
    """As udev leaves it: QEMU's group may use it."""
    return _device(KVM, qemu_user().gid, 0o660)


def device_broken() -> AbstractContextManager[None]:
    return _device(OTHER, qemu_user().gid, 0o660)


def device_broken_and_closed() -> AbstractContextManager[None]:
    """As tools/install leaves one where no udev runs."""
    return _device(OTHER, 0, 0o600)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("state", "kvm", "words"),
    [
        (device_closed, CheckStatus.WARNING, "chgrp kvm /dev/kvm && chmod 660 /dev/kvm"),
        (device_open, CheckStatus.PASSED, "QEMU's account may use /dev/kvm"),
        (device_absent, CheckStatus.WARNING, "There is no /dev/kvm"),
        (device_broken, CheckStatus.WARNING, "chown root:root /dev/kvm && chmod 600 /dev/kvm"),
        (device_broken_and_closed, CheckStatus.WARNING, "Load kvm_intel or kvm_amd"),
    ],
)
async def test_a_guest_is_made_and_boots_whatever_the_device_is(
    state: Callable[[], AbstractContextManager[None]],
    kvm: CheckStatus,
    words: str,
    data_folder: Path,
    naming: Naming,
    clean_host: None,
    demo_image: Path,
) -> None:
    """Also while libvirt probes QEMU at every call, as it does where root may open the device and QEMU may not."""

    async def open_stream(_: str) -> trio.abc.Stream:
        return FileStream(await trio.Path(demo_image).read_bytes())

    spec = machine()
    with state(), trio.fail_after(PATIENCE):
        async with LibvirtHost.open(data_folder, open_stream=open_stream, naming=naming) as host:
            checks = await host.perform(NodePreflight(controller_time=datetime.now(UTC)), silent)
            made = await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
            console = ConsoleReader(await host.open_console(spec.vm_id, ConsoleKind.SERIAL))
            await console.until("login:")
            await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True), silent)

    assert isinstance(checks, PreflightResult)
    [check] = [check for check in checks.checks if check.name == "kvm"]
    assert check.status is kvm
    assert words in check.message
    assert isinstance(made, DomainResult)
    assert made.state is DomainState.RUNNING
