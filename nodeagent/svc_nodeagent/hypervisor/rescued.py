"""What a machine in rescue boots instead of its own disk, and the settings that the rescue system gets.

    machines/<vm_id>/rescue.json   the decision (0600): the system, and how one signs in to it
    machines/<vm_id>/rescue.iso    the rescue system's settings, and the machine's network
    images/<system>.boot/          kernel and initial file system of a rescue system, unpacked from its file

Invariant: while the decision exists the machine boots the rescue, whatever starts it (an order, the host after a power
cut); without it the machine boots its own disk. The definition is derived from the decision, as it is from the record.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from svc_nodeagent.durable import PARTIAL_SUFFIX, sync_folder, write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.domains import DirectBoot
from svc_nodeagent.hypervisor.files import RESCUE, Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guest_network import gateways, in_order
from svc_nodeagent.hypervisor.images import UNPACKED_SUFFIX
from svc_nodeagent.hypervisor.seeds import write_iso
from svc_nodeagent.protocol import FailureCode, NetworkSpec

LABEL: Final = "svc-rescue"
KERNEL, INITRD = "vmlinuz", "initrd"
COMMAND_LINE: Final = "console=tty0 console=ttyS0,115200 quiet loglevel=6 printk.devkmsg=on panic=10"
MOST_UNPACKED_BYTES: Final = 512 * 1024**2
"""The largest kernel and initial file system; ours are some ten MiB each."""


class Rescue(BaseModel):
    """The decision. `system` is the name, in images/, of the file that the rescue system was unpacked from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    instance_id: str
    system: str
    password_hash: str = Field(repr=False)
    ssh_keys: tuple[str, ...]


def rescue_of(folders: Folders, vm_id: UUID) -> Rescue | None:
    try:
        return Rescue.model_validate_json((folders.machine(vm_id) / RESCUE).read_bytes())
    except FileNotFoundError:
        return None


def write_rescue(folders: Folders, vm_id: UUID, rescue: Rescue | None) -> None:
    path = folders.machine(vm_id) / RESCUE
    if rescue is not None:
        write_whole(path, rescue.model_dump_json().encode(), mode=0o600)
        return
    path.unlink(missing_ok=True)
    folders.rescue_seed(vm_id).unlink(missing_ok=True)
    sync_folder(path.parent)


def boot_of(folders: Folders, vm_id: UUID) -> DirectBoot | None:
    """What the machine boots instead of its own disk; None if it is not in rescue. Raises `HostError(not_found)` if its
    rescue system is no longer on this host."""
    rescue = rescue_of(folders, vm_id)
    if rescue is None:
        return None
    folder = unpacked(folders.images / rescue.system)
    boot = DirectBoot(folder / KERNEL, folder / INITRD, COMMAND_LINE, folders.rescue_seed(vm_id))
    for path in (boot.kernel, boot.initrd):
        if not path.exists():
            raise HostError(
                FailureCode.NOT_FOUND,
                f"The machine is in rescue, and the rescue system is no longer on its node ({path.parent.name}).",
                "End the rescue and start it again, which fetches the system.",
            )
    return boot


async def write_seed(record: MachineRecord, folders: Folders, owner: tuple[int, int]) -> None:
    """Write what the rescue system reads when it boots; nothing for a machine that is not in rescue."""
    rescue = await in_thread(rescue_of, folders, record.vm_id)
    if rescue is not None:
        await write_iso(render(record, rescue), LABEL, folders.rescue_seed(record.vm_id), owner)


def render(record: MachineRecord, rescue: Rescue) -> dict[str, str]:
    """The seed's files by name, in the form that tools/images/rescue/usr/lib/svc/setup reads."""
    return {
        "hostname": f"{record.seed.hostname}\n",
        "password": f"{rescue.password_hash}\n",
        "authorized_keys": "".join(f"{key}\n" for key in rescue.ssh_keys),
        "network": "".join(f"{line}\n" for line in _network(record.network)),
    }


def _network(network: NetworkSpec) -> list[str]:
    lines = []
    for index, nic in enumerate(network.nics):
        lines.append(f"nic {nic.mac} {nic.mtu}")
        lines += [f"address {address.interface}" for address in in_order(nic)]
        if index == 0:  # the default routes go through the first NIC
            for address in gateways(nic).values():
                lines.append(f"gateway {address.gateway} {'onlink' if address.on_link else 'inside'}")
        lines += [f"nameserver {server}" for server in nic.nameservers]
    return lines


def unpacked(file: Path) -> Path:
    """The folder with a rescue system's unpacked file."""
    return file.with_name(file.name + UNPACKED_SUFFIX)


def rescue_systems(folders: Folders) -> tuple[str, ...]:
    """The rescue systems that are ready on this host."""
    return tuple(path.name.removesuffix(UNPACKED_SUFFIX) for path in folders.images.glob(f"*{UNPACKED_SUFFIX}"))


def unpack(file: Path) -> None:
    """Unpack the rescue system's kernel and initial file system, for QEMU to read. The packed file has its publisher's
    digest; only these two files are taken from it. Raises `HostError(invalid)` if they are not in it."""
    folder = unpacked(file)
    if folder.exists():
        return
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o711)
    try:
        with tarfile.open(file, "r:") as tar:
            for name in (KERNEL, INITRD):
                member = tar.getmember(name)
                if not member.isreg() or member.size > MOST_UNPACKED_BYTES:
                    raise KeyError(name)
                content = tar.extractfile(member)
                assert content is not None
                write_whole(partial / name, content.read(), mode=0o444)
    except (tarfile.TarError, KeyError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise HostError(
            FailureCode.INVALID,
            f"The file {file.name} is no rescue system: {error}",
            "Have an administrator upload what tools/images/build-rescue makes.",
        ) from error
    partial.rename(folder)
    sync_folder(folder.parent)
