"""Of what the other host's libvirt says, only what a move of the one machine takes comes through."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.live_definition import ArrivingMachine, Refused
from svc_nodeagent.hypervisor.live_gate import require_of_a_move

VM = uuid4()
FOLDER, VOLUME = "/var/lib/svc/machines/m", "/var/lib/svc/volumes/v.qcow2"
BASE = "/var/lib/svc/images/base.qcow2"
MOVED = ArrivingMachine(
    vm_id=VM,
    domain=f"svc-{VM}",
    disks=frozenset({Path(FOLDER, "disk-0.qcow2"), Path(VOLUME)}),
    base=BaseImage(Path(BASE), "qcow2"),
    seed=Path(FOLDER, "seed.iso"),
    serial_log=Path(FOLDER, "serial.log"),
    nvram=Path(FOLDER, "nvram.fd"),
    taps=frozenset({"svc0123"}),
)
REMOTE = 0x20008086
PREPARE = 303


def disk(file: str, form: str = "qcow2", beneath: str = "") -> str:
    driver, source = f"<driver name='qemu' type='{form}'/>", f"<source file='{file}'/>"
    return f"<disk type='file' device='disk'>{driver}{source}{beneath}</disk>"


def upon(file: str, form: str = "qcow2") -> str:
    return f"<backingStore type='file'><format type='{form}'/><source file='{file}'/><backingStore/></backingStore>"


OWN_DISK = disk(f"{FOLDER}/disk-0.qcow2")


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
    disks = [disk(f"{FOLDER}/disk-0.qcow2", beneath=upon(BASE)), disk(VOLUME), disk(f"{FOLDER}/seed.iso", "raw")]
    interface = "<interface type='ethernet'><target dev='svc0123' managed='no'/></interface>"
    serial = f"<serial type='pty'><log file='{FOLDER}/serial.log' append='on'/></serial>"
    firmware = (
        "<os><loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.ms.fd</loader>"
        f"<nvram template='/usr/share/OVMF/OVMF_VARS_4M.ms.fd'>{FOLDER}/nvram.fd</nvram></os>"
    )
    emulator = "<emulator>/usr/bin/qemu-system-x86_64</emulator>"
    require_of_a_move(preparation("".join(disks) + interface + serial + emulator, before=firmware), MOVED)
    require_of_a_move(message(1), MOVED)
    require_of_a_move(message(2, program=0x6B656570), MOVED)


@pytest.mark.parametrize("procedure", [10, 11, 109, 302, 305])
def test_no_other_call_comes_through(procedure: int) -> None:
    with pytest.raises(Refused):
        require_of_a_move(message(procedure), MOVED)


@pytest.mark.parametrize(
    "devices",
    [
        disk("/etc/shadow"),
        disk("/etc/shadow", "raw"),
        disk(f"{FOLDER}/../other/disk-0.qcow2"),
        disk("/var/lib/svc/volumes/of-another.qcow2"),
        disk(BASE),
        # What the guest writes would be read as a header that names other files
        disk(f"{FOLDER}/disk-0.qcow2", "raw"),
        disk(f"{FOLDER}/disk-0.qcow2", beneath=upon(BASE, "raw")),
        disk(f"{FOLDER}/disk-0.qcow2", beneath=upon("/etc/shadow", "raw")),
        "<disk type='file'><driver type='qcow2'/><source file='/etc/shadow' startupPolicy='optional'/></disk>",
        disk(f"{FOLDER}/disk-0.qcow2", beneath="<driver type='raw'/>"),
        disk(f"{FOLDER}/disk-0.qcow2", beneath=upon("/etc/shadow").replace(" type='file'", "", 1)),
        "<disk type='file'><mirror type='file' file='/etc/shadow'/></disk>",
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
        "<serial type='pty'><log file='/var/lib/svc/machines/m/disk-0.qcow2'/></serial>",
        "<interface type='ethernet'><target dev='of-another'/></interface>",
        "<graphics type='vnc' socket='/run/other'/>",
        "<graphics type='vnc'><listen type='address' address='0.0.0.0'/></graphics>",
        "<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>",
        "<tpm model='tpm-crb'><backend type='passthrough'/></tpm>",
        "<tpm model='tpm-crb'><backend type='socket'/></tpm>",
        "<tpm model='tpm-crb'><backend type='emulator'><source type='file' path='/etc'/></backend></tpm>",
        "<rng model='virtio'><backend model='random'>/dev/sda</backend></rng>",
        "<memory-of-tomorrow/>",
    ],
)
def test_a_definition_that_reaches_beyond_the_machine_does_not_come_through(devices: str) -> None:
    with pytest.raises(Refused):
        require_of_a_move(preparation(devices), MOVED)


@pytest.mark.parametrize(
    "before",
    [
        "<os><kernel>/boot/vmlinuz</kernel></os>",
        "<os><loader type='pflash'>/tmp/firmware</loader></os>",
        "<os><loader type='pflash'>/usr/share/../../tmp/firmware</loader></os>",
        f"<os><nvram>{FOLDER}/disk-0.qcow2</nvram></os>",
        "<os><nvram template='/etc/shadow'/></os>",
        "<resource><partition>/of-another</partition></resource>",
        "<seclabel type='none'/>",
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
