"""Telling a guest its network never fails and never lasts, whatever answers in the guest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from uuid import uuid4

import libvirt
import libvirt_qemu
import pytest
import trio
from trio.testing import MockClock

from svc_nodeagent.hypervisor.connection import Connection, ConnectionLost, LibvirtError
from svc_nodeagent.hypervisor.guests import TELL_SECONDS, Guests
from svc_nodeagent.protocol import FailureCode, GuestTold
from tests.nodeagent.hypervisor.test_guest_network import FIRST, MAC, SECOND, spec

T = TypeVar("T")
CARDS = [
    {
        "name": "ens3",
        "hardware-address": MAC,
        "ip-addresses": [{"ip-address": "192.0.2.5", "prefix": 32, "ip-address-type": "ipv4"}],
    }
]


class OneGuest:
    """In libvirt's place: `answer` is asked for what the guest's agent says to each command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, Mapping[str, Any]], object]) -> None:
        self.ran: list[list[str]] = []
        self._answer = answer

        def command(domain: object, text: str, timeout: int, flags: int) -> str:
            asked = json.loads(text)
            if asked["execute"] == "guest-exec":
                self.ran.append([asked["arguments"]["path"], *asked["arguments"]["arg"]])
            said = self._answer(asked["execute"], asked.get("arguments", {}))
            return said if isinstance(said, str) else json.dumps({"return": said})

        monkeypatch.setattr(libvirt_qemu, "qemuAgentCommand", command)

    async def call(self, work: Callable[[Any], T], *, timeout: float, name: str | None = None) -> T:
        await trio.lowlevel.checkpoint()
        return work(self)

    def lookupByUUIDString(self, uuid: str) -> object:  # noqa: N802 - libvirt's own name
        return self

    async def told(self) -> GuestTold:
        return await Guests(cast(Connection, self)).tell_network(uuid4(), spec(FIRST, SECOND), spec(FIRST))


def good(command: str, arguments: Mapping[str, Any]) -> object:
    match command:
        case "guest-network-get-interfaces":
            return CARDS
        case "guest-exec":
            return {"pid": 7}
        case "guest-exec-status":
            return {"exited": arguments["pid"] == 7, "exitcode": 0}
    raise AssertionError(command)


async def test_a_guest_runs_what_it_lacks_as_argument_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = OneGuest(monkeypatch, good)
    assert await guest.told() is GuestTold.TOLD
    assert guest.ran == [["ip", "-4", "address", "replace", "198.51.100.7/32", "dev", "ens3"]]


@pytest.mark.parametrize(
    "lie",
    [
        {"guest-network-get-interfaces": "no JSON"},
        {"guest-network-get-interfaces": '{"return": {"name": 3}}'},
        {"guest-network-get-interfaces": []},
        {"guest-network-get-interfaces": [{"name": "e", "ip-addresses": [{"ip-address": "x", "prefix": 1}]}]},
        {"guest-exec": '{"return": {}}'},
        {"guest-exec-status": {"exited": True, "exitcode": 2}},
        {"guest-exec-status": {"exited": True, "signal": 9}},
        {"guest-exec-status": [[]]},
    ],
)
async def test_a_guest_that_answers_nonsense_or_fails_is_left_to_its_next_start(
    monkeypatch: pytest.MonkeyPatch, lie: Mapping[str, object]
) -> None:
    guest = OneGuest(monkeypatch, lambda command, given: lie[command] if command in lie else good(command, given))
    assert await guest.told() is GuestTold.AT_BOOT


async def test_a_guest_that_answers_megabytes_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nic = {**CARDS[0], "ip-addresses": CARDS[0]["ip-addresses"] * 1_000}  # type: ignore[operator]
    guest = OneGuest(
        monkeypatch,
        lambda command, given: [nic] if command == "guest-network-get-interfaces" else good(command, given),
    )

    assert await guest.told() is GuestTold.AT_BOOT

    assert guest.ran == []


async def test_a_guest_that_never_ends_what_it_was_told_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def busy(command: str, arguments: Mapping[str, Any]) -> object:
        return {"exited": False} if command == "guest-exec-status" else good(command, arguments)

    began = trio.current_time()
    assert await OneGuest(monkeypatch, busy).told() is GuestTold.AT_BOOT
    assert trio.current_time() - began <= TELL_SECONDS + 1


@pytest.mark.parametrize(
    "failure",
    [
        LibvirtError(FailureCode.HOST, "the agent is not connected", libvirt.VIR_ERR_AGENT_UNRESPONSIVE),
        LibvirtError(FailureCode.HOST, "the domain is not running", libvirt.VIR_ERR_OPERATION_INVALID),
        ConnectionLost("libvirtd restarts"),
    ],
)
async def test_a_guest_that_is_off_or_silent_is_left_to_its_next_start(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(command: str, arguments: Mapping[str, Any]) -> object:
        raise failure

    assert await OneGuest(monkeypatch, fail).told() is GuestTold.AT_BOOT
