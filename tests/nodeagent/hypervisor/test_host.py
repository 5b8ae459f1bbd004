"""A real guest under libvirt, from creation to nothing left, through the one door the agent uses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from svc_nodeagent.calls import note_calls
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import (
    MOST_CALLS,
    CheckStatus,
    ConsoleKind,
    DeleteResult,
    DiskSpec,
    DomainResult,
    DomainState,
    FailureCode,
    ImageRemove,
    InventoryResult,
    MachineResult,
    MachineSpec,
    MetricsResult,
    NodeInventory,
    NodeNetProbe,
    NodePreflight,
    OperationResult,
    PreflightResult,
    ProbeResult,
    ReleaseResult,
    VmCreate,
    VmDelete,
    VmDescribe,
    VmForceStop,
    VmMetrics,
    VmNetRelease,
    VmReboot,
    VmReset,
    VmSetPassword,
    VmShutdown,
    VmStart,
    VmUpdate,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, GATEWAY, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD, LATER_PASSWORD = "Kelp-marble-41", "Otter-lantern-72"


async def state_of(host: LibvirtHost, spec: MachineSpec) -> DomainState:
    inventory = await host.perform(NodeInventory(), silent)
    assert isinstance(inventory, InventoryResult)
    return next((d.state for d in inventory.domains if d.vm_id == spec.vm_id), DomainState.ABSENT)


def state(result: OperationResult) -> DomainState:
    assert isinstance(result, DomainResult)
    return result.state


async def test_a_guest_from_creation_to_nothing_left(
    host: LibvirtHost, demo_image: Path, data_folder: Path, naming: Naming
) -> None:
    password_hash = sha512_crypt(PASSWORD)
    spec = machine(network(ADDRESS), seeded=seed(password_hash=password_hash))
    vm_id, folder = spec.vm_id, data_folder / "machines" / str(spec.vm_id)

    created = await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    assert state(created) is DomainState.RUNNING
    assert password_hash.encode() in (folder / "seed.iso").read_bytes()

    # The boot, and a login with the chosen password
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    assert "Linux version" in await console.until("login:")
    await console.log_in("alice", PASSWORD)
    assert "0% packet loss" in await console.run(f"ping -c 1 {GATEWAY}")
    assert (await trio.run_process(["ping", "-c", "1", "-W", "5", ADDRESS], capture_stdout=True)).returncode == 0

    # Two viewers at once, the screen beside them
    beside = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    assert "Linux version" in await beside.until("login:", seconds=5)
    screen = await host.open_console(vm_id, ConsoleKind.VNC)
    async with screen:
        with trio.fail_after(300):
            assert bytes(await screen.receive_some(12)) == b"RFB 003.008\n"

    # Through the guest's agent, which also says that the first boot is done with its secret
    with trio.fail_after(300):
        await until_set(host, spec, sha512_crypt(LATER_PASSWORD))
        while (folder / "first-boot.json").exists():
            await trio.sleep(0.1)
    assert password_hash.encode() not in (folder / "seed.iso").read_bytes()
    await console.type("exit")
    await console.until("login:")
    await console.log_in("alice", LATER_PASSWORD)

    probe = await host.perform(NodeNetProbe(), silent)
    assert isinstance(probe, ProbeResult)
    assert [(tap.vm_id, tap.routes, tap.up, tap.filtered) for tap in probe.taps] == [(vm_id, (ADDRESS,), True, True)]

    # What a controller that has lost its record is told
    kept = await host.perform(VmDescribe(vm_id=vm_id), silent)
    assert isinstance(kept, MachineResult)
    assert kept.machine.image_digest == image(demo_image).digest
    assert (kept.machine.name, kept.machine.disks, kept.machine.network) == (spec.name, spec.disks, spec.network)
    assert kept.machine.seed.account.password_hash is None

    # Measured all the while
    measured = await measurements(host, spec)
    assert all(point.cpu_percent > 0 for point in measured.points)
    assert any(point.memory_used_mib for point in measured.points)

    # Off and on again, with a change of definition that waited for it; what was set later stands
    updated = VmUpdate(vm_id=vm_id, name="web-2", vcpus=1, memory_mib=384)
    assert state(await host.perform(updated, silent)) is DomainState.RUNNING
    assert state(await host.perform(VmShutdown(vm_id=vm_id), silent)) is DomainState.STOPPED
    with trio.fail_after(300):
        while await beside.stream.receive_some():
            pass
    with pytest.raises(HostError) as refusal:
        await host.open_console(vm_id, ConsoleKind.SERIAL)
    assert refusal.value.code is FailureCode.CONFLICT
    assert state(await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)) is DomainState.RUNNING
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until("was set up before")
    await console.until("login:")
    await console.log_in("alice", LATER_PASSWORD)
    assert int((await console.run("grep MemTotal /proc/meminfo")).split("MemTotal:")[1].split()[0]) > 300_000

    with pytest.raises(HostError) as refusal:
        await host.perform(ImageRemove(image_id=(await inventory(host)).images[0].image_id), silent)
    assert refusal.value.code is FailureCode.CONFLICT

    deleted = await host.perform(VmDelete(vm_id=vm_id, destroy_disks=True), silent)
    assert isinstance(deleted, DeleteResult)
    assert deleted.removed_addresses == (ADDRESS,)
    await nothing_is_left(host, spec, data_folder, naming)


async def until_set(host: LibvirtHost, spec: MachineSpec, password_hash: str) -> None:
    """A guest's agent that is not there yet is a refusal with a reason, and no more."""
    operation = VmSetPassword(vm_id=spec.vm_id, account="alice", password_hash=password_hash)
    done = False
    while not done:
        try:
            await host.perform(operation, silent)
            done = True
        except HostError as error:
            if error.code not in (FailureCode.CONFLICT, FailureCode.TIMED_OUT):
                raise
            await trio.sleep(0.5)


async def measurements(host: LibvirtHost, spec: MachineSpec) -> MetricsResult:
    """Two readings make the first point."""
    with trio.fail_after(300):
        while True:
            result = await host.perform(VmMetrics(vm_id=spec.vm_id, resolution_seconds=10, hours=1), silent)
            assert isinstance(result, MetricsResult)
            if result.points:
                return result
            await trio.sleep(0.5)


async def inventory(host: LibvirtHost) -> InventoryResult:
    result = await host.perform(NodeInventory(), silent)
    assert isinstance(result, InventoryResult)
    return result


async def nothing_is_left(host: LibvirtHost, spec: MachineSpec, data_folder: Path, naming: Naming) -> None:
    assert await state_of(host, spec) is DomainState.ABSENT
    assert not (data_folder / "machines" / str(spec.vm_id)).exists()
    probe = await host.perform(NodeNetProbe(), silent)
    assert isinstance(probe, ProbeResult)
    assert (probe.taps, probe.machines) == ((), ())
    rules = (await trio.run_process(["nft", "list", "ruleset"], capture_stdout=True)).stdout.decode()
    assert naming.tap(spec.network.nics[0].nic_id) not in rules
    assert ADDRESS not in rules
    routes = (await trio.run_process(["ip", "route", "show"], capture_stdout=True)).stdout.decode()
    assert ADDRESS not in routes


async def test_a_stop_by_force_ends_a_reboot_that_hangs_and_the_guest_stays_off(
    host: LibvirtHost, demo_image: Path
) -> None:
    spec = machine()  # a guest that has only just started does not hear the power button
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    await host.perform(VmStart(vm_id=spec.vm_id, network=spec.network), silent)
    asked = trio.Event()

    async def report(percent: int, message: str) -> None:
        asked.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_is_superseded, host, spec, report)
        await asked.wait()
        stopped = await host.perform(VmForceStop(vm_id=spec.vm_id), silent)
        assert state(stopped) is DomainState.STOPPED
    assert await state_of(host, spec) is DomainState.STOPPED


async def _is_superseded(host: LibvirtHost, spec: MachineSpec, report: object) -> None:
    with pytest.raises(HostError) as superseded:
        await host.perform(VmReboot(vm_id=spec.vm_id), report)  # type: ignore[arg-type]
    assert superseded.value.code is FailureCode.CANCELLED


async def test_a_guest_that_does_not_shut_down_is_left_running(host: LibvirtHost, demo_image: Path) -> None:
    spec = machine()
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    with pytest.raises(HostError) as late:
        await host.perform(VmShutdown(vm_id=spec.vm_id, timeout_seconds=0.1), silent)
    assert late.value.code is FailureCode.TIMED_OUT
    assert state(await host.perform(VmReset(vm_id=spec.vm_id), silent)) is DomainState.RUNNING


async def test_retained_disks_are_listed_and_keep_their_image(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec = machine(disks=(DiskSpec(index=0, size_gib=1), DiskSpec(index=1, size_gib=2)))
    kept_image = image(demo_image)
    await host.perform(VmCreate(machine=spec, image=kept_image, start=False), silent)
    result = await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=False), silent)
    assert isinstance(result, DeleteResult)
    assert result.retained_disks == tuple(f"retained/{spec.vm_id}/disk-{index}.qcow2" for index in (0, 1))
    assert (await inventory(host)).retained_disks == result.retained_disks
    assert all((data_folder / disk).exists() for disk in result.retained_disks)
    with pytest.raises(HostError) as refusal:
        await host.perform(ImageRemove(image_id=kept_image.image_id), silent)
    assert refusal.value.code is FailureCode.CONFLICT


async def test_a_disk_smaller_than_its_image_is_refused(
    host: LibvirtHost, files: dict[str, Path], tmp_path: Path
) -> None:
    big = tmp_path / "big.qcow2"
    await trio.run_process(["qemu-img", "create", "-q", "-f", "qcow2", str(big), "3G"])
    files[image(big).digest] = big
    with pytest.raises(HostError) as refusal:
        await host.perform(VmCreate(machine=machine(), image=image(big)), silent)
    assert refusal.value.code is FailureCode.INVALID
    assert "3 GiB" in refusal.value.message


async def test_a_machine_nobody_made_is_not_found_and_its_deletion_a_success(host: LibvirtHost) -> None:
    spec = machine()
    for operation in (
        VmStart(vm_id=spec.vm_id, network=spec.network),
        VmShutdown(vm_id=spec.vm_id),
        VmForceStop(vm_id=spec.vm_id),
        VmReset(vm_id=spec.vm_id),
        VmUpdate(vm_id=spec.vm_id, name="x", vcpus=1, memory_mib=128),
    ):
        with pytest.raises(HostError) as refusal:
            await host.perform(operation, silent)
        assert refusal.value.code is FailureCode.NOT_FOUND
    result = await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True), silent)
    assert result == DeleteResult(vm_id=spec.vm_id, removed_addresses=(), retained_disks=())


async def test_changes_are_told_whoever_made_them(host: LibvirtHost, demo_image: Path, naming: Naming) -> None:
    spec = machine()
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    seen = []
    with trio.fail_after(300):
        async for change in host.domain_changes():
            seen.append((change.vm_id, change.state))
            if change.state is DomainState.RUNNING:
                await trio.run_process(["virsh", "destroy", naming.domain(spec.vm_id)], capture_stdout=True)
            if change.state is DomainState.STOPPED:
                break
    assert seen[-2:] == [(spec.vm_id, DomainState.RUNNING), (spec.vm_id, DomainState.STOPPED)]


async def test_a_creation_notes_what_it_asks_of_libvirt_and_of_the_hosts_programs(
    host: LibvirtHost, demo_image: Path
) -> None:
    calls = note_calls()

    await host.perform(VmCreate(machine=machine(network(ADDRESS)), image=image(demo_image)), silent)

    names = [call.name for call in calls]
    assert {"download image", "run qemu-img", "run nft", "virDomainDefineXML", "virDomainCreate"} <= set(names)
    assert names.index("virDomainDefineXML") < names.index("virDomainCreate")
    assert len(names) < MOST_CALLS


async def test_released_addresses_are_named_again_when_asked_again(host: LibvirtHost, demo_image: Path) -> None:
    spec = machine(network(ADDRESS))
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    released = ReleaseResult(vm_id=spec.vm_id, removed=(ADDRESS,))
    for _ in range(2):
        assert await host.perform(VmNetRelease(vm_id=spec.vm_id, addresses=(ADDRESS,)), silent) == released
    probe = await host.perform(NodeNetProbe(), silent)
    assert isinstance(probe, ProbeResult)
    assert [(machine.addresses, machine.differences) for machine in probe.machines] == [((), ())]


async def test_a_creation_that_fails_leaves_nothing(host: LibvirtHost, demo_image: Path, data_folder: Path) -> None:
    spec = machine(network(ADDRESS)).model_copy(update={"memory_mib": 64 * 2**20})  # more than any host has

    with pytest.raises(HostError):
        await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)

    probe = await host.perform(NodeNetProbe(), silent)
    assert isinstance(probe, ProbeResult)
    assert probe.machines == ()
    assert await state_of(host, spec) is DomainState.ABSENT
    assert not (data_folder / "machines" / str(spec.vm_id)).exists()


async def test_a_creation_whose_time_is_over_leaves_nothing(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec, given_up = machine(network(ADDRESS)), trio.CancelScope()

    async def give_up_when_defined(percent: int, message: str) -> None:
        if message == "starting":
            given_up.cancel()

    with given_up:
        await host.perform(VmCreate(machine=spec, image=image(demo_image)), give_up_when_defined)

    assert given_up.cancelled_caught
    assert await state_of(host, spec) is DomainState.ABSENT
    assert not (data_folder / "machines" / str(spec.vm_id)).exists()


async def test_what_a_failed_creation_could_not_remove_goes_once_libvirt_answers_again(
    host: LibvirtHost, demo_image: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = machine(network(ADDRESS)).model_copy(update={"memory_mib": 64 * 2**20})  # more than any host has
    folder = data_folder / "machines" / str(spec.vm_id)

    async def refuse(*_: object) -> None:
        raise HostError(FailureCode.HOST, "libvirt refuses everything")

    with monkeypatch.context() as patched:
        patched.setattr(Guests, "destroy", refuse)
        with pytest.raises(HostError):
            await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    left_over = await state_of(host, spec)
    host._events.reconnected()
    with trio.fail_after(300):
        while folder.exists():
            await trio.sleep(0.05)

    assert left_over is DomainState.STOPPED
    assert await state_of(host, spec) is DomainState.ABSENT


async def test_this_host_passes_preflight(host: LibvirtHost) -> None:
    result = await host.perform(NodePreflight(controller_time=datetime.now(UTC)), silent)
    assert isinstance(result, PreflightResult)
    checks = {check.name: check for check in result.checks}
    assert {
        "programs",
        "libvirt",
        "emulator",
        "kvm",
        "accelerator",
        "nftables",
        "forwarding",
        "disk",
        "storage",
        "backups",
    } <= set(checks)
    assert [check for check in result.checks if check.status is CheckStatus.FAILED] == []
    assert (await host.facts()).accelerator in ("kvm", "tcg")


async def test_others_domains_are_shown_as_not_ours(host: LibvirtHost, naming: Naming) -> None:
    foreign = machine()
    xml = f"<domain type='qemu'><name>{naming.domain_prefix}foreign</name><uuid>{foreign.vm_id}</uuid>"
    xml += "<memory>65536</memory><os><type>hvm</type></os></domain>"
    await trio.run_process(["virsh", "define", "/dev/stdin"], stdin=xml.encode(), capture_stdout=True)
    observed = {domain.uuid: domain.vm_id for domain in (await inventory(host)).domains}
    assert observed[foreign.vm_id] is None


async def test_a_creation_that_still_waits_for_its_image_carries_nothing_that_was_released_meanwhile(
    host: LibvirtHost, demo_image: Path
) -> None:
    spec = machine()
    released: list[tuple[str, ...]] = []

    async def release_meanwhile(percent: int, message: str) -> None:
        if not released:
            result = await host.perform(VmNetRelease(vm_id=spec.vm_id, addresses=(ADDRESS,)), silent)
            assert isinstance(result, ReleaseResult)
            released.append(result.removed)

    with pytest.raises(HostError) as superseded:
        await host.perform(VmCreate(machine=spec, image=image(demo_image)), release_meanwhile)
    assert superseded.value.code is FailureCode.CANCELLED
    assert released == [(ADDRESS,)]
    probe = await host.perform(NodeNetProbe(), silent)
    assert isinstance(probe, ProbeResult)
    assert probe.taps == ()
