"""Of what the other host's libvirt says, only what a move of the one machine takes comes through."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor.live_gate import Moved, Refused, require_of_a_move

VM = uuid4()
VOLUME = Path("/var/lib/svc/volumes/v.qcow2")
MOVED = Moved(
    VM, f"svc-{VM}", Path("/var/lib/svc/machines/m"), frozenset({VOLUME}), Path("/var/lib/svc/images/base.qcow2")
)
REMOTE = 0x20008086
PREPARE = 303
OWN_DISK = "<disk type='file'><source file='/var/lib/svc/machines/m/disk-0.qcow2'/></disk>"


def message(procedure: int, body: bytes = b"", program: int = REMOTE) -> bytes:
    return struct.pack(">7I", 28 + len(body), program, 1, procedure, 0, 1, 0) + body


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def preparation(devices: str, *, uuid: object = VM, before: str = "") -> bytes:
    xml = f"<domain><name>svc-{VM}</name><uuid>{uuid}</uuid>{before}<devices>{devices}</devices></domain>"
    flags = text("bandwidth") + struct.pack(">IQ", 4, 0)
    return message(PREPARE, struct.pack(">I", 2) + flags + text("destination_xml") + struct.pack(">I", 7) + text(xml))


def test_a_move_of_the_machine_comes_through() -> None:
    base = "<disk type='file'><backingStore><source file='/var/lib/svc/images/base.qcow2'/></backingStore></disk>"
    volume = f"<disk type='file'><source file='{VOLUME}'/></disk>"
    require_of_a_move(preparation(OWN_DISK + base + volume + "<emulator>/usr/bin/qemu-system-x86_64</emulator>"), MOVED)
    require_of_a_move(message(1), MOVED)
    require_of_a_move(message(2, program=0x6B656570), MOVED)


@pytest.mark.parametrize("procedure", [10, 11, 109, 302, 305])
def test_no_other_call_comes_through(procedure: int) -> None:
    with pytest.raises(Refused):
        require_of_a_move(message(procedure), MOVED)


@pytest.mark.parametrize(
    "devices",
    [
        "<disk type='file'><source file='/etc/shadow'/></disk>",
        "<disk type='file'><source file='/var/lib/svc/machines/m/../other/disk-0.qcow2'/></disk>",
        "<disk type='file'><source file='/var/lib/svc/volumes/of-another.qcow2'/></disk>",
        "<disk type='block'><source dev='/dev/vda'/></disk>",
        "<disk type='network'><source name='x'/></disk>",
        "<emulator>/tmp/program</emulator>",
        "<emulator>/usr/bin/qemu-system-x86_64/../../../tmp/program</emulator>",
        "<hostdev/>",
        "<filesystem/>",
        "<interface type='direct'/>",
        "<interface type='ethernet'><script path='/tmp/script'/></interface>",
        "<serial type='file'><source path='/etc/passwd'/></serial>",
        "<serial type='pty'><log file='/etc/passwd'/></serial>",
        "<graphics socket='/run/other'/>",
    ],
)
def test_a_definition_that_reaches_beyond_the_machine_does_not_come_through(devices: str) -> None:
    with pytest.raises(Refused):
        require_of_a_move(preparation(devices), MOVED)


@pytest.mark.parametrize(
    "before",
    [
        "<os><kernel>/boot/vmlinuz</kernel></os>",
        "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'/>",
    ],
)
def test_nothing_of_the_host_is_booted_or_passed_to_qemu(before: str) -> None:
    with pytest.raises(Refused):
        require_of_a_move(preparation(OWN_DISK, before=before), MOVED)


def test_another_machine_and_a_preparation_without_one_do_not_come_through() -> None:
    for sent in (preparation(OWN_DISK, uuid=uuid4()), message(PREPARE, struct.pack(">I", 0)), message(PREPARE, b"\0")):
        with pytest.raises(Refused):
            require_of_a_move(sent, MOVED)
