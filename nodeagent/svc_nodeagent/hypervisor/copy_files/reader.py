"""A QEMU that reads the files of a copy's disks: it runs the rescue system, started from memory only for this.

A guest has written the content of a copy, so only the kernel of the rescue system reads the copy's file systems, and
neither a program nor the kernel of the host does. Invariants: the QEMU has no network, its disks are read-only, its
account owns nothing on the host; it may create no process and write no file larger than a MiB; it has only the
descriptors that were opened for it. The QEMU ends with the block. If the agent dies, the rescue system notices that its
only connection to the host has ended, and shuts down; if it does not, the next agent ends the QEMU (`backups.orphans`).
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.acceleration import DEVICE, EMULATOR
from svc_nodeagent.hypervisor.backups.orphans import FILES_PORT
from svc_nodeagent.hypervisor.backups.running import QUIET, Errors
from svc_nodeagent.hypervisor.copy_files.sftp import Sftp
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.hypervisor.programs import ENVIRONMENT, RunAs
from svc_nodeagent.hypervisor.rescued import INITRD, KERNEL
from svc_nodeagent.protocol import CopiedVolume, CopyVolumeState, FailureCode

BOOT_SECONDS: Final = 300.0
"""Includes checking the file systems; an emulated system takes 7 s on a quiet host."""
_ACCOUNT: Final = 2_147_400_000
"""The user id of the QEMU process: no account of the host has this number, and systemd assigns none of this range."""
_VOLUMES: Final = b"/run/volumes"
_COMMAND_LINE: Final = "rdinit=/usr/lib/svc/show-files console=ttyS0,115200 loglevel=2 panic=-1"
"""With a low log level, because the kernel repeats its messages about a damaged file system: nobody reads them, and
QEMU's output is limited."""
_CONFINED: Final = ("prlimit", "--core=0", "--nofile=256", f"--fsize={1024 * 1024}", "--")
_SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_END_SECONDS: Final = 30.0
"""A killed QEMU may still wait for a disk that does not answer; it ends once the disk does."""
_MOST_LIST_BYTES: Final = 64 * 1024
_SHOWN_ERROR_CHARACTERS: Final = 400


@dataclass(frozen=True)
class ServedVolumes:
    """`server` answers requests about all volumes; `root_of` gives the place of each volume's tree."""

    server: Sftp
    volumes: tuple[CopiedVolume, ...]
    process: trio.Process


@asynccontextmanager
async def showing(disks: Sequence[Path], system: Path, accelerator: Accelerator) -> AsyncIterator[ServedVolumes]:
    """Show the files of these qcow2 disks for the length of the block, by the rescue system that is unpacked in
    `system`. Raises `HostError` if that system does not start."""
    ours, theirs = socket.socketpair()
    with Errors() as said, ExitStack() as opened:
        opened.callback(theirs.close)
        ours.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with stream:
            descriptors = []
            for disk in disks:
                descriptors.append(await in_thread(os.open, disk, os.O_RDONLY | os.O_CLOEXEC))
                opened.callback(os.close, descriptors[-1])
            process = await trio.lowlevel.open_process(
                [*QUIET, *_CONFINED, *_qemu(descriptors, theirs.fileno(), system, accelerator)],
                stdin=subprocess.DEVNULL,
                stdout=said.file,
                stderr=said.file,
                env=ENVIRONMENT,
                pass_fds=(*descriptors, theirs.fileno()),
                user=_account(accelerator).uid,
                group=_account(accelerator).gid,
                extra_groups=_account(accelerator).groups,
                cwd="/",
            )
            try:
                opened.close()  # Only QEMU keeps the other end, so this side notices when QEMU ends.
                server = Sftp(stream)
                await _come_up(server, said)
                yield ServedVolumes(server, await _volumes(server), process)
            finally:
                process.kill()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
                    await process.wait()


def root_of(volume: CopiedVolume) -> bytes:
    """The root of a volume's tree, as the path to ask the server for."""
    return _VOLUMES + b"/%d" % volume.number


async def _come_up(server: Sftp, said: Errors) -> None:
    with trio.move_on_after(BOOT_SECONDS) as deadline:
        try:
            await server.greet()
        except HostError as error:
            why = " ".join(said.last().split())[-_SHOWN_ERROR_CHARACTERS:] or "it said nothing"
            raise HostError(
                FailureCode.HOST,
                f"The system that reads the backup's files did not start: {why}",
                "The node's rescue system may be of a release before this one: install the controller's package anew.",
            ) from error
    if deadline.cancelled_caught:
        raise HostError(
            FailureCode.TIMED_OUT,
            f"The backup's file systems could not be examined within {BOOT_SECONDS:g} s; they may be damaged.",
            "Open another backup, or create a new machine from this one.",
        )


async def _volumes(server: Sftp) -> tuple[CopiedVolume, ...]:
    """The volumes that the rescue system has listed. Invalid lines are left out; a guest can cause them only by taking
    over the rescue system."""
    told = await server.read(_VOLUMES + b"/list", 0, _MOST_LIST_BYTES)
    found: dict[int, CopiedVolume] = {}
    for line in told.decode(errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) != 6:
            continue
        try:
            number, device, type, size, state, system = fields
            volume = CopiedVolume(
                number=int(number),
                device=device,
                type=type,
                size_bytes=int(size),
                state=CopyVolumeState(state),
                system=system == "yes",
            )
        except ValueError:
            continue
        found[volume.number] = volume
    return tuple(found.values())


def _qemu(disks: Sequence[int], line: int, system: Path, accelerator: Accelerator) -> list[str]:
    command = [
        *(EMULATOR, "-accel", accelerator.value, "-machine", "q35", "-m", "384", "-smp", "1"),
        *("-cpu", "max"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none", "-serial", "stdio"),
        *("-sandbox", _SANDBOX),
        *("-kernel", str(system / KERNEL), "-initrd", str(system / INITRD), "-append", _COMMAND_LINE),
        *("-chardev", f"socket,id=line,fd={line}", "-device", "virtio-serial-pci"),
        *("-device", f"virtserialport,chardev=line,{FILES_PORT}"),
    ]
    for place, descriptor in enumerate(disks):
        node = f"disk{place}"
        source = f"file.driver=file,file.filename=/dev/fdset/{place},file.locking=off"
        command += ["-add-fd", f"fd={descriptor},set={place}"]
        command += ["-blockdev", f"driver=qcow2,node-name={node},read-only=on,{source}"]
        command += ["-device", f"virtio-blk-pci,drive={node}"]
    return command


def _account(accelerator: Accelerator) -> RunAs:
    """The account that the QEMU runs as, in the group that may open /dev/kvm if that is needed."""
    groups = (DEVICE.stat().st_gid,) if accelerator is Accelerator.KVM else ()
    return RunAs(_ACCOUNT, _ACCOUNT, groups)
