"""The moment of a backup in a guest whose agent is slow: whatever the agent does late, the guest writes again. libvirt
is played, in its own words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import libvirt
import libvirt_qemu
import pytest
import trio

from svc_nodeagent.hypervisor import freezing
from svc_nodeagent.hypervisor.backups import reading
from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.files import Folders, MachineRecord
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import DomainState, FailureCode

T = TypeVar("T")


def refused(words: str, number: int = libvirt.VIR_ERR_AGENT_UNRESPONSIVE) -> Exception:
    error = libvirt.libvirtError(words)
    error.err = (number, libvirt.VIR_FROM_QEMU, words)
    return cast(Exception, error)


SILENT = refused("Guest agent is not responding: guest agent didn't respond to command within '10' seconds")
AWAY = refused("Guest agent is not responding: QEMU guest agent is not connected")
FULL = refused("unable to execute QEMU command 'transaction'", libvirt.VIR_ERR_OPERATION_FAILED)


class BusyGuest:
    """In libvirt's place: its agent freezes it, and answers neither that nor the next `silent` calls. One that is
    `away` never hears of it. `full`: its backup cannot be begun."""

    def __init__(self, *, silent: int = 0, away: bool = False, full: bool = False) -> None:
        self.frozen = False
        self.asked: list[str] = []
        self.silent, self._away, self._full = silent, away, full

    async def state(self, vm_id: UUID) -> DomainState:
        return DomainState.RUNNING

    async def on_domain(self, vm_id: UUID, name: str, work: Callable[[Any], T], **_: float) -> T:
        await trio.lowlevel.checkpoint()
        try:
            return work(self)
        except libvirt.libvirtError as error:
            words = error.get_error_message()
            raise LibvirtError(FailureCode.TIMED_OUT, str(words), error.get_error_code()) from error

    def name(self) -> str:
        return "busy"

    def isActive(self) -> bool:  # noqa: N802  (libvirt's name)
        return True

    def jobStats(self) -> dict[str, int]:  # noqa: N802
        return {}

    def agentSetResponseTimeout(self, seconds: int) -> None:  # noqa: N802
        pass

    def backupBegin(self, xml: str, checkpoint: None, flags: int) -> None:  # noqa: N802
        self.asked.append("begin")
        if self._full:
            raise FULL

    def fsFreeze(self) -> None:  # noqa: N802
        self.asked.append("freeze")
        if self._away:
            raise AWAY
        self.frozen = True
        if self.silent:
            raise SILENT

    def fsThaw(self) -> None:  # noqa: N802
        self.asked.append("thaw")
        if self._away:
            raise AWAY
        if self.silent:
            self.silent -= 1
            raise SILENT
        self.frozen = False


@pytest.fixture
async def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineRecord:
    monkeypatch.setattr(reading, "qemu_user", lambda: SimpleNamespace(owner=(os.getuid(), os.getgid())))
    monkeypatch.setattr(freezing, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", lambda *_: '{"return": []}')
    vm_id = uuid4()
    disk = Folders(tmp_path).disk(vm_id, 0)
    disk.parent.mkdir(parents=True)
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", disk, "1M")
    return cast(MachineRecord, SimpleNamespace(vm_id=vm_id, disks=(SimpleNamespace(index=0, volume_id=None),)))


async def backed_up(guest: BusyGuest, record: MachineRecord, folder: Path) -> tuple[bool, bool]:
    """Whether it was frozen for the moment, and whether it still was while the disks were read."""
    async with reading._of_running(record, cast(Guests, guest), Folders(folder), folder, {}) as moment:
        return moment.frozen, guest.frozen


async def test_a_guest_is_frozen_for_the_moment_and_no_longer(record: MachineRecord, tmp_path: Path) -> None:
    guest = BusyGuest()
    assert await backed_up(guest, record, tmp_path) == (True, False)
    assert guest.asked == ["freeze", "begin", "thaw", "thaw"]


async def test_one_that_freezes_late_is_asked_until_it_writes_again(record: MachineRecord, tmp_path: Path) -> None:
    guest = BusyGuest(silent=5)
    assert await backed_up(guest, record, tmp_path) == (False, False)
    assert guest.asked == ["freeze", "begin", *["thaw"] * 6]


async def test_where_it_stays_silent_the_disks_are_read_and_it_is_asked_again_at_the_end(
    record: MachineRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "_LATE_SECONDS", 0.05)
    guest = BusyGuest(silent=1_000_000)
    async with reading._of_running(record, cast(Guests, guest), Folders(tmp_path), tmp_path, {}) as moment:
        assert (moment.frozen, guest.frozen) == (False, True)
        guest.silent = 3
    assert guest.frozen is False


async def test_one_that_freezes_late_writes_again_where_its_backup_could_not_begin(
    record: MachineRecord, tmp_path: Path
) -> None:
    guest = BusyGuest(silent=5, full=True)
    with pytest.raises(LibvirtError):
        await backed_up(guest, record, tmp_path)
    assert guest.frozen is False


async def test_an_agent_that_is_not_there_is_not_waited_for(record: MachineRecord, tmp_path: Path) -> None:
    guest = BusyGuest(away=True)
    assert await backed_up(guest, record, tmp_path) == (False, False)
    assert guest.asked == ["freeze", "begin", "thaw", "thaw"]
