"""A Windows guest: its first boot is over when its file is there, its own agent gives it its password as it is, and
nothing that it says of a refusal is handed on. libvirt is played; the words are those of QEMU's guest agent
(qemu-ga-ref)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import libvirt
import libvirt_qemu
import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import Connection, ConnectionLost, LibvirtError
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.windows import FIRST_BOOT, WindowsGuests
from svc_nodeagent.protocol import FailureCode, WindowsReport

T = TypeVar("T")
PASSWORD = "Correct-Horse-7"
AWAY = LibvirtError(
    FailureCode.TIMED_OUT,
    "Guest agent is not responding: QEMU guest agent is not connected",
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
)
ABSENT = LibvirtError(FailureCode.HOST, "guest-file-open: failed to open file", libvirt.VIR_ERR_INTERNAL_ERROR)


class WindowsGuest:
    """In libvirt's place. `system`: what its agent says of it; `file`: what its first boot has left; `refusal`: what
    comes of setting a password."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        system: object = {"id": "mswindows"},
        file: bytes | None = None,
        refusal: LibvirtError | None = None,
    ) -> None:
        self.given: list[tuple[str, str, int]] = []
        self.open: set[int] = set()
        self.vm_id: UUID = uuid4()
        self._system, self._file, self._refusal = system, file, refusal
        self._windows = WindowsGuests(Guests(cast(Connection, self)))
        monkeypatch.setattr(libvirt_qemu, "qemuAgentCommand", self._command)

    def _command(self, domain: object, text: str, timeout: int, flags: int) -> str:
        asked = json.loads(text)
        return json.dumps({"return": self._answer(asked["execute"], asked.get("arguments", {}))})

    def _answer(self, command: str, given: dict[str, Any]) -> object:
        match command:
            case "guest-get-osinfo":
                if isinstance(self._system, Exception):
                    raise self._system
                return self._system
            case "guest-file-open":
                assert given == {"path": FIRST_BOOT, "mode": "rb"}
                if self._file is None:
                    raise ABSENT
                self.open.add(1000)
                return 1000
            case "guest-file-read":
                content = (self._file or b"")[: given["count"]]
                return {"count": len(content), "buf-b64": base64.b64encode(content).decode(), "eof": True}
            case "guest-file-close":
                self.open.remove(given["handle"])
                return {}
        raise AssertionError(command)

    async def call(self, work: Callable[[Any], T], *, timeout: float, name: str | None = None) -> T:
        await trio.lowlevel.checkpoint()
        return work(self)

    def lookupByUUIDString(self, uuid: str) -> object:  # noqa: N802 - libvirt's own name
        return self

    def agentSetResponseTimeout(self, seconds: int) -> None:  # noqa: N802 - libvirt's own name
        pass

    def setUserPassword(self, account: str, password: str, flags: int) -> None:  # noqa: N802 - libvirt's own name
        if self._refusal is not None:
            raise self._refusal
        self.given.append((account, password, flags))

    async def set(self) -> None:
        await self._windows.set_password(self.vm_id, "Administrator", PASSWORD)

    async def report(self) -> WindowsReport:
        return await self._windows.report(self.vm_id)


async def test_windows_gets_the_password_itself_and_no_crypt(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = WindowsGuest(monkeypatch)
    await guest.set()
    assert guest.given == [("Administrator", PASSWORD, 0)]


@pytest.mark.parametrize("system", [{"id": "debian"}, {}, 3, []])
async def test_a_guest_that_is_no_windows_is_told_no_password(monkeypatch: pytest.MonkeyPatch, system: object) -> None:
    guest = WindowsGuest(monkeypatch, system=system, file=b"{}")
    with pytest.raises(HostError) as refused:
        await guest.set()
    assert refused.value.code is FailureCode.CONFLICT
    assert guest.given == []
    assert not (await guest.report()).booted


async def test_before_its_agent_is_there_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = WindowsGuest(monkeypatch, system=AWAY, file=b"{}")
    with pytest.raises(HostError) as refused:
        await guest.set()
    assert refused.value.code is FailureCode.CONFLICT
    assert guest.given == []
    assert not (await guest.report()).booted


async def test_a_refusal_repeats_nothing_that_the_guest_says(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = LibvirtError(FailureCode.HOST, f"agent: bad password {PASSWORD}", libvirt.VIR_ERR_INTERNAL_ERROR)
    with pytest.raises(HostError) as refused:
        await WindowsGuest(monkeypatch, refusal=echo).set()
    assert refused.value.code is FailureCode.HOST
    assert PASSWORD not in f"{refused.value.message} {refused.value.hint}"
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("file", "booted", "password"),
    [
        (None, False, None),
        (json.dumps({"password": PASSWORD}).encode(), True, PASSWORD),
        (json.dumps({"password": None}).encode(), True, None),
        (b"{}", True, None),
        (b"finished", True, None),
        (b"", True, None),
        (json.dumps({"password": "x" * 300}).encode(), True, None),
    ],
)
async def test_the_first_boot_has_ended_when_its_file_is_there(
    monkeypatch: pytest.MonkeyPatch, file: bytes | None, booted: bool, password: str | None
) -> None:
    guest = WindowsGuest(monkeypatch, file=file)
    report = await guest.report()
    assert (report.booted, report.password) == (booted, password)
    assert guest.open == set(), "the file is closed in the guest"
    assert PASSWORD not in repr(report)


async def test_a_lost_libvirt_says_nothing_of_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionLost):
        await WindowsGuest(monkeypatch, system=ConnectionLost("it died")).report()
