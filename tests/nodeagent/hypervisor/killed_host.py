"""What a host has of a machine whose agent is killed: nothing twice, nothing left, and the same content of its disk."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BufferedReader
from pathlib import Path

import trio

from svc_nodeagent.hypervisor import Naming
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES, Digests, blocks_of, span_of
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import CopiedDisk, MachineSpec
from tests.nodeagent.hypervisor.builders import ADDRESS

ROOT = Path(__file__).resolve().parents[3]
KILLED = -9
Perform = Callable[..., Awaitable[int]]


def domains(naming: Naming) -> list[str]:
    listed = subprocess.run(["virsh", "list", "--all", "--name"], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split() if name.startswith(naming.domain_prefix)]


def state(name: str) -> str:
    return subprocess.run(["virsh", "domstate", name], check=True, capture_output=True, text=True).stdout.strip()


async def asked_of_agent(domain: str, command: str) -> object:
    """None where the guest's agent does not answer."""
    words = ["virsh", "qemu-agent-command", domain, json.dumps({"execute": command}), "--timeout", "5"]
    ended = await trio.run_process(words, check=False, capture_stdout=True, capture_stderr=True)
    return json.loads(ended.stdout)["return"] if ended.returncode == 0 else None


async def until_agent_answers(domain: str) -> None:
    with trio.fail_after(300):
        while await asked_of_agent(domain, "guest-ping") is None:
            await trio.sleep(0.5)  # the guest's own start


async def made_once(spec: MachineSpec, naming: Naming, data_folder: Path, started: bool) -> None:
    assert domains(naming) == [naming.domain(spec.vm_id)]
    assert state(naming.domain(spec.vm_id)) == ("running" if started else "shut off")
    files = sorted(path.name for path in (data_folder / "machines" / str(spec.vm_id)).iterdir())
    made = [name for name in files if not name.startswith("serial.log") and name != "copied"]
    assert made == ["disk-0.qcow2", "machine.json", "seed.iso"]
    probe = await HostNetwork(naming, {}).probe()
    assert [(t.device, t.routes, t.up, t.filtered) for t in probe.taps] == [
        (naming.tap(spec.network.nics[0].nic_id), (ADDRESS,), True, True)
    ]


async def nothing_left(spec: MachineSpec, naming: Naming, data_folder: Path, *, retained: bool) -> None:
    assert domains(naming) == []
    assert list((data_folder / "machines").iterdir()) == []
    kept = sorted(str(path.relative_to(data_folder / "retained")) for path in (data_folder / "retained").glob("*/*"))
    assert kept == ([f"{spec.vm_id}/disk-0.qcow2", f"{spec.vm_id}/machine.json"] if retained else [])
    assert (await HostNetwork(naming, {}).probe()).taps == ()
    rules = (await run_program("nft", "list", "ruleset")).decode()
    assert naming.tap(spec.network.nics[0].nic_id) not in rules


async def content(disk: Path) -> str:
    """The digest of all that a guest could read of it."""
    async with read(disk) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def as_copied(disk: Path) -> CopiedDisk:
    """What a backup says of a disk that is as this one is."""
    async with read(disk) as file:
        size = file.seek(0, os.SEEK_END)
        digests = Digests.of_zeros(size)
        for number in range(blocks_of(size)):
            begin, length = span_of(number, size)
            file.seek(begin)
            digests.put(number, file.read(length))
    return CopiedDisk(index=0, size_bytes=size, digest=digests.root(), block_bytes=BLOCK_BYTES)


@asynccontextmanager
async def read(disk: Path) -> AsyncIterator[BufferedReader]:
    raw = disk.with_suffix(".raw")
    await run_program("qemu-img", "convert", "-O", "raw", disk, raw)
    try:
        with raw.open("rb") as file:
            yield file
    finally:
        raw.unlink()
