"""A machine's disks in a real QEMU that runs no guest, in the place of libvirt and its domain: enough of both for
backups of a machine that runs. What a guest would write is written through QEMU's own console."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID
from xml.etree import ElementTree

import libvirt

from svc_nodeagent.protocol import DomainState

T = TypeVar("T")


class Qemu:
    """`disks`: by the target's name ("vda"). It is ended, or killed, once."""

    def __init__(self, disks: Mapping[str, Path]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qemu-")
        address = Path(self._folder.name) / "monitor"
        command = ["qemu-system-x86_64", "-M", "none", "-nodefaults", "-display", "none"]
        command += ["-qmp", f"unix:{address},server=on,wait=on"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._socket = socket.socket(socket.AF_UNIX)
        while self._socket.connect_ex(str(address)) != 0:
            assert self.process.poll() is None
        self._socket.settimeout(30)
        self._said = self._socket.makefile("rb")
        json.loads(self._said.readline())
        self.ask("qmp_capabilities")
        for name, path in disks.items():
            self.plug(name, path)

    def answer(self, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            said = json.loads(self._said.readline())
            if "event" not in said:
                return dict(said)

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.answer(command, {name.replace("_", "-"): value for name, value in arguments.items()})["return"]

    def plug(self, name: str, path: Path) -> None:
        """A disk that a guest has: what it writes goes through the filter that a backup job puts above `name`."""
        told = f"if=none,id=guest-{name},node-name={name},file={path},format=qcow2,discard=unmap"
        assert self._console(f"drive_add 0 {told}").strip() == "OK"

    def unplug(self, name: str) -> None:
        assert self._console(f"drive_del guest-{name}") == ""

    def write(self, name: str, command: str) -> None:
        """As qemu-io has it: `write -P 7 1M 64k`, `discard 2M 1M`."""
        said = self._console(f'qemu-io guest-{name} "{command}"')
        assert said == "", said

    def _console(self, line: str) -> str:
        return str(self.ask("human-monitor-command", command_line=line))

    def end(self, *, killed: bool = False) -> None:
        if killed:
            self.process.kill()
        else:
            self.ask("quit")
        self.process.wait(30)
        self._said.close()
        self._socket.close()
        self._folder.cleanup()


class Domain:
    """What a backup asks of libvirt's. It has no guest agent."""

    def __init__(self, qemu: Qemu) -> None:
        self.qemu = qemu
        self._job: list[str] = []

    def name(self) -> str:
        return "bare"

    def isActive(self) -> bool:  # noqa: N802  (libvirt's name)
        return self.qemu.process.poll() is None

    def agentSetResponseTimeout(self, _: int) -> None:  # noqa: N802  (libvirt's name)
        pass

    def fsFreeze(self) -> None:  # noqa: N802  (libvirt's name)
        raise libvirt.libvirtError("it has no guest agent")

    def fsThaw(self) -> None:  # noqa: N802  (libvirt's name)
        pass

    def blockStatsFlags(self, _: str) -> dict[str, int]:  # noqa: N802  (libvirt's name)
        """The guest has not used its disk."""
        return {"rd_total_times": 0, "wr_total_times": 0, "flush_total_times": 0}

    def jobStats(self) -> dict[str, int]:  # noqa: N802  (libvirt's name)
        return {"operation": libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP} if self._job else {}

    def backupBegin(self, xml: str, _: None, __: int) -> None:  # noqa: N802  (libvirt's name)
        """As libvirt does: what is overwritten goes into a file that stands on the disk, and that is shown."""
        job, ask = ElementTree.fromstring(xml), self.qemu.ask
        address = job.findall("server")[0].attrib["socket"]
        ask("nbd-server-start", addr={"type": "unix", "data": {"path": address}})
        self._job, actions = [each.attrib["name"] for each in job.iter("disk")], []
        for disk in job.iter("disk"):
            name, scratch = disk.attrib["name"], disk.findall("scratch")[0].attrib["file"]
            file = {"driver": "file", "filename": scratch}
            ask("blockdev-add", driver="qcow2", node_name=f"scratch-{name}", file=file, backing=name)
            told = {"device": name, "target": f"scratch-{name}", "sync": "none", "job-id": f"backup-{name}"}
            actions.append({"type": "blockdev-backup", "data": told})
        ask("transaction", actions=actions)
        for name in self._job:
            ask("block-export-add", type="nbd", id=name, node_name=f"scratch-{name}", name=name)

    def abortJob(self) -> None:  # noqa: N802  (libvirt's name)
        ask = self.qemu.ask
        ask("nbd-server-stop")
        for name in self._job:
            ask("block-job-cancel", device=f"backup-{name}")
        while ask("query-block-jobs"):
            pass
        for name in self._job:
            ask("blockdev-del", node_name=f"scratch-{name}")
        self._job = []


class Guests:
    """`domain` is None while the machine is off."""

    def __init__(self) -> None:
        self.domain: Domain | None = None

    async def state(self, _: UUID) -> DomainState:
        return DomainState.STOPPED if self.domain is None else DomainState.RUNNING

    async def on_domain(self, _: UUID, __: str, work: Callable[[Any], T], *, timeout: float = 0) -> T:
        assert self.domain is not None
        return work(self.domain)


def monitor_of(domain: Domain, command: str, _: int) -> str:
    """In the place of libvirt's `qemuMonitorCommand`."""
    told = json.loads(command)
    return json.dumps(domain.qemu.answer(told["execute"], told["arguments"]))
