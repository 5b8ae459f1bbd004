"""What a running backup costs its guest's disk: requests of a program in a real guest, with and without, in turn.

Run as `tools/bench guest-disk`, as root on a host with libvirt, restic and gcc, and with nobody else's guests. The
guest has a disk of which `--content` MiB are written; its program reads and writes there past the guest's cache, one
request after the other, which is what notices most. For each kind of load a turn without a backup and one in the midst
of a whole one alternate, and the median of their ratios counts. At last it writes over a whole backup, moment included.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Final
from uuid import uuid4

import structlog
import trio

from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.connection import start_daemons
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import ConsoleKind, DiskSpec, VmBackup, VmCreate, VmStart
from tests.nodeagent.hypervisor.builders import FileStream, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.conftest import _remove_domains
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt
from tests.support.image_paths import IMAGES, TOOLS
from tools.benchmarks.figures import MESSAGES, Figure, show

LOADS: Final = {
    "4 KiB written anywhere": "w r 4",
    "256 KiB written in sequence": "w s 256",
    "4 KiB read anywhere": "r r 4",
    "256 KiB read in sequence": "r s 256",
}
_MIB: Final = 1024 * 1024
_PASSWORD: Final = "Kelp-marble-41"


class Guest:
    """A guest with a program that uses its second disk."""

    def __init__(self, host: LibvirtHost, folder: Path, content_mib: int, seconds: float) -> None:
        self._host, self._folder, self._content_mib, self._seconds = host, folder, content_mib, seconds
        gib = 2 * -(-content_mib // 1024)
        disks = (DiskSpec(index=0, size_gib=1), DiskSpec(index=1, size_gib=gib))
        self._spec = machine(network(), seeded=seed(password_hash=sha512_crypt(_PASSWORD)), disks=disks)
        self._turns = 0

    async def start(self, system: Path) -> None:
        vm_id = self._spec.vm_id
        await self._host.perform(VmCreate(machine=self._spec, image=image(system), start=False), silent)
        program = await self._fill(self._folder / "machines" / str(vm_id) / "disk-1.qcow2")
        await self._host.perform(VmStart(vm_id=vm_id, network=self._spec.network), silent)
        self._console = ConsoleReader(await self._host.open_console(vm_id, ConsoleKind.SERIAL))
        await self._console.until_prompted()
        await self._console.log_in("alice", _PASSWORD)
        await self._console.type("doas sh")
        await self._console.quiet()
        await self._console.run(f"dd if=/dev/vdb of=/tmp/use bs=4096 count={-(-program // 4096)}; chmod +x /tmp/use")

    async def _fill(self, disk: Path) -> int:
        """The program at the disk's begin, then random bytes. The program's length."""
        program = self._folder / "program"
        source = Path(__file__).with_name("guest_disk.c")
        subprocess.run(["gcc", "-O2", "-static", "-s", "-o", program, source], check=True)
        part = self._folder / "part"
        part.write_bytes(program.read_bytes().ljust(_MIB, b"\0"))
        await run_program("qemu-io", "-f", "qcow2", "-c", f"write -s {part} 0 1M", disk)
        for place in range(1, self._content_mib, 256):
            part.write_bytes(os.urandom(256 * _MIB))
            await run_program("qemu-io", "-f", "qcow2", "-c", f"write -s {part} {place}M 256M", disk, timeout=300)
        part.unlink()
        os.chown(disk, *qemu_user().owner)
        return program.stat().st_size

    async def use(self, load: str) -> tuple[float, float, float]:
        """MiB/s, and the median and the 99th percentile of what a request takes, in microseconds."""
        self._turns += 1
        begin_mib, mib = 1, self._content_mib - 1
        kind, order, size = load.split()
        command = f"/tmp/use /dev/vdb {kind} {order} {size} {self._seconds} {begin_mib} {mib} {self._turns}"
        said = await self._console.run(command, seconds=self._seconds + 120)
        found = re.search(r"figures ([\d.]+) ([\d.]+) ([\d.]+)", said)
        assert found is not None, said
        return float(found[1]), float(found[2]), float(found[3])

    async def back_up(self, copying: trio.Event) -> float:
        """A whole one, to an empty target."""
        vm_id = self._spec.vm_id
        target, base = self._folder / "backups/machines" / str(vm_id), self._folder / "machines" / str(vm_id) / "copied"
        shutil.rmtree(target, ignore_errors=True)
        base.unlink(missing_ok=True)

        async def report(_: int, message: str) -> None:
            if message == "copying disk 1":
                copying.set()

        begun = perf_counter()
        await self._host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password="key"), report)
        return perf_counter() - begun


@asynccontextmanager
async def guest_of(content_mib: int, seconds: float) -> AsyncIterator[Guest]:
    await start_daemons()
    number = os.getpid()
    naming = Naming(f"svcbench{number}-", device_prefix=f"b{number % 4096:03x}", table=f"svcbench{number}")
    system = IMAGES / "demo.qcow2"
    await trio.run_process([TOOLS / "build-demo", system], capture_stderr=True)

    async def open_stream(_: str) -> trio.abc.Stream:
        return FileStream(await trio.Path(system).read_bytes())

    folder = Path(tempfile.mkdtemp(prefix="svc-guest-disk-", dir="/var/tmp"))
    folder.chmod(0o711)
    (folder / "backups/machines").mkdir(parents=True)
    try:
        async with LibvirtHost.open(folder, open_stream=open_stream, naming=naming) as host:
            guest = Guest(host, folder, content_mib, seconds)
            await guest.start(system)
            yield guest
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            await trio.to_thread.run_sync(_remove_domains, naming.domain_prefix)
            await HostNetwork(naming, {}).clear()
            shutil.rmtree(folder, ignore_errors=True)


async def _in_turns(guest: Guest, rounds: int) -> list[Figure]:
    figures = []
    for name, load in LOADS.items():
        MESSAGES.print(f"{name} ...", style="dim")
        pairs = []
        for _ in range(rounds):
            alone, copying = await guest.use(load), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(guest.back_up, copying)
                await copying.wait()
                beside = await guest.use(load)
                nursery.cancel_scope.cancel()
            pairs.append((alone, beside))
            MESSAGES.print(f"  {alone} {beside}", style="dim")
        for place, words, unit in ((0, "throughput", "MiB/s"), (1, "median latency", "us"), (2, "p99 latency", "us")):
            of = [median(pair[side][place] for pair in pairs) for side in (0, 1)]
            ratio = median(beside[place] / max(alone[place], 0.001) for alone, beside in pairs)
            title = f"{name}: {words} beside a backup ({of[1]:.4g} : {of[0]:.4g} {unit})"
            goal = {0: 0.8, 1: 1.2}.get(place)
            figures.append(Figure(title, ratio, "times", goal, higher_is_better=place == 0))
    return figures


async def _over_all(guest: Guest) -> list[Figure]:
    """Turns of a load from the begin of a backup to its end, its moment included."""
    load, copying, seconds = LOADS["4 KiB written anywhere"], trio.Event(), list[float]()
    alone = [(await guest.use(load))[0] for _ in range(4)]
    beside = list[float]()
    async with trio.open_nursery() as nursery:

        async def back_up() -> None:
            seconds.append(await guest.back_up(copying))

        nursery.start_soon(back_up)
        while not seconds:
            beside.append((await guest.use(load))[0])
    ratio, worst = fmean(beside) / fmean(alone), min(beside) / fmean(alone)
    return [
        Figure("4 KiB written anywhere, over the whole of a backup: throughput", ratio, "times", 0.8, True),
        Figure("the same, the worst turn of it", worst, "times"),
        Figure("the length of that backup", seconds[0], "s"),
    ]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench guest-disk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--content", type=int, default=1024, metavar="MIB")
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    async def measured() -> list[Figure]:
        async with guest_of(given.content, given.seconds) as guest:
            return [*await _in_turns(guest, given.rounds), *await _over_all(guest)]

    load = os.getloadavg()[0]
    show(trio.run(measured), load)
