"""A real guest is resized while it runs and with a restart, and reinstalled; what fails leaves it as it was."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import (
    ConsoleKind,
    DomainResult,
    DomainState,
    FailureCode,
    MachineSize,
    OperationResult,
    VmCreate,
    VmReinstall,
    VmResize,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

SMALL = MachineSize(vcpus=1, memory_mib=256, disk_gib=1)
PASSWORD, NEW_PASSWORD = "Kelp-marble-41", "Otter-lantern-72"
GIB_IN_SECTORS = 2 * 1024 * 1024


def state(result: OperationResult) -> DomainState:
    assert isinstance(result, DomainResult)
    return result.state


async def signed_in(host: LibvirtHost, vm_id: UUID, password: str, booted: str) -> ConsoleReader:
    """`booted`: what the guest says of its first boot, since the console begins with what was said before."""
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until(f"instance {booted}")
    await console.until("login:")
    await console.log_in("alice", password)
    return console


async def test_a_guest_is_resized_and_then_another_system_with_the_same_addresses(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, folder = spec.vm_id, data_folder / "machines" / str(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await signed_in(host, vm_id, PASSWORD, f"{spec.seed.instance_id} is set up")

    # A larger disk, at once
    larger = VmResize(vm_id=vm_id, vcpus=1, memory_mib=256, disk_gib=2, before=SMALL, restart=False)
    assert state(await host.perform(larger, silent)) is DomainState.RUNNING
    assert str(2 * GIB_IN_SECTORS) in await console.run("cat /sys/block/vda/size")

    # Memory, with a restart; the disk keeps what it has grown by
    grown = MachineSize(vcpus=1, memory_mib=256, disk_gib=2)
    more = VmResize(vm_id=vm_id, vcpus=1, memory_mib=384, disk_gib=1, before=grown, restart=True)
    assert state(await host.perform(more, silent)) is DomainState.RUNNING
    console = await signed_in(host, vm_id, PASSWORD, f"{spec.seed.instance_id} was set up before")
    assert int((await console.run("grep MemTotal /proc/meminfo")).split("MemTotal:")[1].split()[0]) > 300_000
    assert str(2 * GIB_IN_SECTORS) in await console.run("cat /sys/block/vda/size")
    await console.run("echo precious > kept; sync")

    # Another system
    new_hash = sha512_crypt(NEW_PASSWORD)
    anew = VmReinstall(vm_id=vm_id, image=image(demo_image), seed=seed(password_hash=new_hash), network=spec.network)
    assert state(await host.perform(anew, silent)) is DomainState.RUNNING
    console = await signed_in(host, vm_id, NEW_PASSWORD, f"{anew.seed.instance_id} is set up")
    assert "precious" not in await console.run("cat kept")
    assert (await trio.run_process(["ping", "-c", "1", "-W", "5", ADDRESS], capture_stdout=True)).returncode == 0
    record = read_record(folder / "machine.json")
    assert (record.memory_mib, record.disks[0].size_gib) == (384, 2)
    assert str(2 * GIB_IN_SECTORS) in await console.run("cat /sys/block/vda/size")

    # Asked for again, it is done; and the first boot's secret goes as that of any machine does
    disk = (folder / "disk-0.qcow2").stat().st_ino
    assert state(await host.perform(anew, silent)) is DomainState.RUNNING
    assert (folder / "disk-0.qcow2").stat().st_ino == disk
    with trio.fail_after(300):
        while (folder / "first-boot.json").exists():
            await trio.sleep(0.1)
    assert new_hash.encode() not in (folder / "seed.iso").read_bytes()
    assert not list(folder.glob("reinstall*"))


async def test_a_guest_that_does_not_shut_down_is_left_running_with_what_it_had(
    host: LibvirtHost, demo_image: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Guests, "press_power_button", unheard)
    spec = machine()
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    before = read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json")

    resize = VmResize(
        vm_id=spec.vm_id, vcpus=2, memory_mib=512, disk_gib=3, before=SMALL, restart=True, timeout_seconds=1.0
    )
    with pytest.raises(HostError) as refused:
        await host.perform(resize, silent)

    assert refused.value.code is FailureCode.TIMED_OUT
    assert read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json") == before


async def test_a_size_that_cannot_be_started_is_put_back_and_the_guest_runs(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec = machine()
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    before = read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json")

    too_much = VmResize(vm_id=spec.vm_id, vcpus=1, memory_mib=4 * 1024 * 1024, disk_gib=3, before=SMALL, restart=True)
    with pytest.raises(HostError):
        await host.perform(too_much, silent)

    again = VmResize(vm_id=spec.vm_id, vcpus=1, memory_mib=256, disk_gib=1, before=SMALL, restart=False)
    assert read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json") == before
    assert state(await host.perform(again, silent)) is DomainState.RUNNING


async def test_a_reinstallation_that_cannot_make_the_disk_leaves_the_guest_running(
    host: LibvirtHost, demo_image: Path, data_folder: Path, tmp_path: Path, files: dict[str, Path]
) -> None:
    spec = machine()
    folder = data_folder / "machines" / str(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    disk = (folder / "disk-0.qcow2").stat().st_ino
    too_large = tmp_path / "large.qcow2"
    await trio.run_process(["qemu-img", "create", "-q", "-f", "qcow2", str(too_large), "9G"])
    wanted = image(too_large)
    files[wanted.digest] = too_large

    with pytest.raises(HostError) as refused:
        await host.perform(VmReinstall(vm_id=spec.vm_id, image=wanted, seed=seed(), network=spec.network), silent)

    assert refused.value.code is FailureCode.INVALID
    assert read_record(folder / "machine.json").seed.instance_id == spec.seed.instance_id
    assert ((folder / "disk-0.qcow2").stat().st_ino, list(folder.glob("reinstall*"))) == (disk, [])
    unchanged = VmResize(vm_id=spec.vm_id, vcpus=1, memory_mib=256, disk_gib=1, before=SMALL, restart=False)
    assert state(await host.perform(unchanged, silent)) is DomainState.RUNNING
