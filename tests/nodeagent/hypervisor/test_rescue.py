"""A machine that does not boot is put into rescue, mended over SSH, and boots its own disk again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.protocol import (
    ConsoleKind,
    DomainResult,
    DomainState,
    InventoryResult,
    NodeInventory,
    OperationResult,
    VmCreate,
    VmForceStop,
    VmReboot,
    VmRescue,
    VmRescueEnd,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, rescue_image, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD, RESCUE_PASSWORD = "Kelp-marble-41", "Otter-lantern-72"


def state(result: OperationResult) -> DomainState:
    assert isinstance(result, DomainResult)
    return result.state


async def ssh(key: Path, command: str) -> str:
    """What root of the rescue system is answered, at the machine's own address."""
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    line = ["ssh", *options, "-o", "ConnectTimeout=5", "-i", str(key), f"root@{ADDRESS}", command]
    with trio.fail_after(300):
        while True:
            done = await trio.run_process(line, check=False, capture_stdout=True, capture_stderr=True)
            if done.returncode != 255:
                assert done.returncode == 0, done.stdout + done.stderr
                return done.stdout.decode()
            await trio.sleep(0.3)


async def is_in_rescue(host: LibvirtHost) -> bool:
    inventory = await host.perform(NodeInventory(), silent)
    assert isinstance(inventory, InventoryResult)
    [ours] = [each for each in inventory.domains if each.vm_id is not None]
    return ours.rescue


async def test_a_broken_machine_is_mended_in_rescue_and_runs_again(
    host: LibvirtHost,
    demo_image: Path,
    rescue_system: Path,
    data_folder: Path,
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, key = spec.vm_id, tmp_path / "key"
    await trio.run_process(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until(f"instance {spec.seed.instance_id} is set up")
    await console.until("login:")
    await console.log_in("alice", PASSWORD)
    await console.run("sudo mv /sbin/init /sbin/init.away; sync")
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until("Kernel panic", "can't execute '/sbin/init'", "No working init")
    assert await is_in_rescue(host) is False

    files[f"file:{rescue_system}"] = rescue_system
    rescue = VmRescue(
        vm_id=vm_id,
        instance_id="r-1",
        system=rescue_image(rescue_system),
        password_hash=sha512_crypt(RESCUE_PASSWORD),
        ssh_keys=(key.with_suffix(".pub").read_text().strip(),),
        network=spec.network,
        runs=True,
        force=True,
    )
    assert state(await host.perform(rescue, silent)) is DomainState.RUNNING
    assert await is_in_rescue(host) is True
    assert "vda" not in await ssh(key, "cat /proc/mounts")
    for tool in ("e2fsck xfs_repair btrfs fsck.vfat lvm mdadm cryptsetup parted sfdisk", "rsync nano vi chroot lsblk"):
        assert await ssh(key, f"for each in {tool}; do command -v $each >/dev/null || echo $each; done") == ""
    for tool in ("e2fsck -V", "xfs_repair -V", "btrfs --version", "lvm version", "mdadm --version", "nano --version"):
        await ssh(key, f"{tool} >/dev/null 2>&1")
    await ssh(key, "cryptsetup --version; parted --version; rsync --version; modprobe -a xfs btrfs dm-crypt raid1")
    sent = tmp_path / "sent"
    sent.write_text("by sftp\n")
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", str(key)]
    await trio.run_process(["scp", "-q", *options, str(sent), f"root@{ADDRESS}:/tmp/"], capture_stderr=True)
    assert await ssh(key, "cat /tmp/sent") == "by sftp\n"

    # A power cut, or a reboot by order, does not end it
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    assert await is_in_rescue(host) is True
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    await ssh(key, "touch /run/of-this-boot")
    await host.perform(VmReboot(vm_id=vm_id), silent)
    assert "of-this-boot" not in await ssh(key, "ls /run")

    # By the password, at the console: mount, mend; and the end shuts it down in order
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until_prompted()
    await console.log_in("root", RESCUE_PASSWORD)
    mended = "fsck -p /dev/vda2; mount /dev/vda2 /mnt && mv /mnt/sbin/init.away /mnt/sbin/init && echo men''ded"
    assert "mended" in await console.run(mended)
    assert state(await host.perform(VmRescueEnd(vm_id=vm_id, network=spec.network, runs=True), silent)) is (
        DomainState.RUNNING
    )
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until_prompted()
    await console.log_in("alice", PASSWORD)
    assert "mnt" not in await console.run("sudo dmesg | grep -i 'recovering journal\\|errors on'")
    assert await is_in_rescue(host) is False
    assert not list((data_folder / "machines" / str(vm_id)).glob("rescue*"))
