"""Checks the definition that comes with a guest from another host.

The target makes its own definition for later starts. But the guest arrives running, with the definition that the source
sends, and libvirt, as root, does what this definition says. So it is compared with a list of what definitions of our
machines contain (`domains`), and of what libvirt adds to them. Anything else is refused.

Rejected: refusing only what is on a list of dangerous elements. libvirt's grammar grows with each release, and a new
element would pass.

Invariants: the only files of this host that are named are the machine's own (each in its role and with its format), its
image as the base of the first disk, and the firmware; the only program is QEMU, and the only taps are the machine's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID
from xml.etree import ElementTree

import trio

from svc_nodeagent.hypervisor.domains import METADATA_NAMESPACE, BaseImage


@dataclass(frozen=True)
class ArrivingMachine:
    """The machine that may arrive, and its files on this host. `disks` includes its volumes; all are qcow2."""

    vm_id: UUID
    domain: str
    disks: frozenset[Path]
    base: BaseImage
    seed: Path
    serial_log: Path
    nvram: Path
    taps: frozenset[str]


class Refused(trio.BrokenResourceError):
    """The source has sent something that does not occur in a migration. The class is a kind of broken stream, so the
    code that carries the streams ends the migration."""


_ADDRESS: Final = "type domain bus slot function multifunction controller target unit port"
_ELEMENTS: Final[Mapping[str, str]] = {
    "": "type",
    "name": "",
    "uuid": "",
    "title": "",
    "metadata": "",
    f"metadata/{{{METADATA_NAMESPACE}}}machine": "id",
    "memory": "unit",
    "currentMemory": "unit",
    "vcpu": "placement",
    "resource": "",
    "resource/partition": "",
    "os": "firmware",
    "os/type": "arch machine",
    "os/firmware": "",
    "os/firmware/feature": "enabled name",
    "os/loader": "readonly secure type format",
    "os/nvram": "template templateFormat format",
    "os/boot": "dev",
    "features": "",
    "features/acpi": "",
    "features/apic": "",
    "features/smm": "state",
    "cpu": "mode match check migratable",
    "cpu/model": "fallback vendor_id",
    "cpu/vendor": "",
    "cpu/feature": "policy name",
    "cpu/topology": "sockets dies clusters cores threads",
    "cpu/maxphysaddr": "mode bits limit",
    "clock": "offset",
    "clock/timer": "name tickpolicy present",
    "on_poweroff": "",
    "on_reboot": "",
    "on_crash": "",
    "devices": "",
    "devices/emulator": "",
    "devices/disk": "type device",
    "devices/disk/driver": "name type cache discard",
    "devices/disk/source": "file",
    "devices/disk/source/seclabel": "model relabel",
    "devices/disk/backingStore": "type",
    "devices/disk/backingStore/format": "type",
    "devices/disk/backingStore/source": "file",
    "devices/disk/backingStore/source/seclabel": "model relabel",
    "devices/disk/backingStore/backingStore": "",
    "devices/disk/target": "dev bus",
    "devices/disk/serial": "",
    "devices/disk/readonly": "",
    "devices/controller": "type index model",
    "devices/controller/model": "name",
    "devices/controller/target": "chassis port",
    "devices/interface": "type",
    "devices/interface/mac": "address",
    "devices/interface/target": "dev managed",
    "devices/interface/model": "type",
    "devices/interface/mtu": "size",
    "devices/serial": "type",
    "devices/serial/log": "file append",
    "devices/serial/target": "type port",
    "devices/serial/target/model": "name",
    "devices/console": "type",
    "devices/console/log": "file append",
    "devices/console/target": "type port",
    "devices/channel": "type",
    "devices/channel/target": "type name state",
    "devices/input": "type bus",
    "devices/tpm": "model",
    "devices/tpm/backend": "type version persistent_state",
    "devices/graphics": "type sharePolicy",
    "devices/graphics/listen": "type",
    "devices/audio": "id type",
    "devices/video": "",
    "devices/video/model": "type vram heads primary",
    "devices/rng": "model",
    "devices/rng/backend": "model",
    "devices/memballoon": "model",
    "devices/memballoon/stats": "period",
    "devices/watchdog": "model action",
    "devices/panic": "model",
    **dict.fromkeys(
        (
            f"devices/{device}/address"
            for device in (
                "disk",
                "controller",
                "interface",
                "serial",
                "channel",
                "input",
                "video",
                "rng",
                "memballoon",
            )
        ),
        _ADDRESS,
    ),
}
"""Each allowed element by its path, with the attributes that it may have. Only the values that are checked below
(files, programs, taps, kinds) refer to something on the host; the others describe the machine to the guest."""

_TYPES: Final[Mapping[str, str]] = {
    "devices/disk": "file",
    "devices/interface": "ethernet",
    "devices/serial": "pty",
    "devices/console": "pty",
    "devices/channel": "unix",
    "devices/tpm/backend": "emulator",
    "devices/graphics": "vnc",
    "devices/graphics/listen": "socket",
    "devices/audio": "none",
}
"""The types that refer to something on the host. The same element with another type would refer to another kind of
thing: a disk of type `block` to a device, a serial port of type `file` to a file that QEMU writes."""
_EMULATOR: Final = "/usr/bin/qemu-system-*"
_FIRMWARE: Final = Path("/usr/share")
_RANDOM: Final = "/dev/urandom"
_PARTITION: Final = "/machine"


def require_own(xml: str, moved: ArrivingMachine) -> None:
    """Check the whole definition. Raises `Refused` if it contains anything that a definition of this machine does not
    have, and `ElementTree.ParseError` if it is not XML."""
    # First the structure is checked (only known elements, attributes and types), then the values that name something on
    # the host.
    domain = ElementTree.fromstring(xml)  # noqa: S314 - expat resolves nothing outside of the text
    if domain.tag != "domain" or domain.findtext("uuid") != str(moved.vm_id) or domain.findtext("name") != moved.domain:
        raise Refused("another machine")
    for path, element in _walk(domain):
        if (allowed := _ELEMENTS.get(path)) is None:
            raise Refused(f"an element {path}")
        if unknown := element.attrib.keys() - set(allowed.split()):
            raise Refused(f"an attribute {sorted(unknown)[0]} of {path or 'domain'}")
        if element.get("type") != _TYPES.get(path, element.get("type")):
            raise Refused(f"{path} of type {element.get('type')}")
    # Texts of elements: each may have only the values that our own definitions use; if one is absent, libvirt chooses
    # the value itself.
    _require_text(domain, "resource/partition", lambda text: text == _PARTITION)
    _require_text(domain, "os/loader", _is_firmware)
    _require_text(domain, "os/nvram", lambda text: text == str(moved.nvram))
    _require_text(domain, "devices/emulator", lambda text: Path(text).match(_EMULATOR) and _is_plain(text))
    _require_text(domain, "devices/rng/backend", lambda text: text == _RANDOM)
    # libvirt copies the template to the firmware variables of a guest that has none. Without this check the guest could
    # read any file of the host in this way.
    for nvram in domain.iterfind("os/nvram[@template]"):
        if not _is_firmware(nvram.get("template", "")):
            raise Refused(f"the file {nvram.get('template')}")
    # Only the machine's own taps: with the tap of another machine, the guest would get that machine's addresses.
    for target in domain.iterfind("devices/interface/target"):
        if target.get("dev") not in moved.taps:
            raise Refused(f"the interface {target.get('dev')}")
    # Only the machine's own log file: virtlogd, which is root, writes the guest's serial output to the named file,
    # whichever it is.
    for log in (*domain.iterfind("devices/serial/log"), *domain.iterfind("devices/console/log")):
        if log.get("file") != str(moved.serial_log):
            raise Refused(f"the file {log.get('file')}")
    for disk in domain.iterfind("devices/disk"):
        _require_own_disk(disk, moved)


def _require_own_disk(disk: ElementTree.Element, moved: ArrivingMachine) -> None:
    """Require that each file has its own format. Read as qcow2, a raw file's content could name a backing file of the
    guest's choice; read as raw, a qcow2 disk lets the guest write its header."""
    found = [(source.get("file", ""), _type(disk, "driver")) for source in disk.iterfind("source")]
    own = {(str(path), "qcow2") for path in moved.disks} | {(str(moved.seed), "raw")}
    for file, form in found:
        if (file, form) not in own:
            raise Refused(f"a disk of the file {file} as {form}")
    # An element without attributes and sources says that the disk has no backing image. Elements at deeper levels may
    # have neither (`_ELEMENTS`).
    for beneath in disk.iterfind("backingStore"):
        files = [source.get("file", "") for source in beneath.iterfind("source")]
        if (beneath.attrib or files) and (beneath.get("type"), files) != ("file", [str(moved.base.path)]):
            raise Refused(f"a disk upon {beneath.get('type')} {files}")
        if files and _type(beneath, "format") != moved.base.format:
            raise Refused(f"an image as {_type(beneath, 'format')}")


def _walk(domain: ElementTree.Element) -> Iterator[tuple[str, ElementTree.Element]]:
    waiting = [("", domain)]
    while waiting:
        path, element = waiting.pop()
        yield path, element
        waiting += [(f"{path}/{child.tag}".lstrip("/"), child) for child in element]


def _require_text(domain: ElementTree.Element, path: str, may_be: Callable[[str], bool]) -> None:
    for element in domain.iterfind(path):
        text = (element.text or "").strip()
        if text and not may_be(text):
            raise Refused(f"{element.tag} {text}")


def _type(element: ElementTree.Element, child: str) -> str | None:
    """The type of this child. None also if the child is there twice: libvirt might use another one of the two than was
    checked here."""
    found = element.findall(child)
    return found[0].get("type") if len(found) == 1 else None


def _is_firmware(text: str) -> bool:
    # Any file below this folder: the firmware descriptors of Debian's packages name the files of OVMF, which differ
    # from release to release.
    return _FIRMWARE in Path(text).parents and _is_plain(text)


def _is_plain(text: str) -> bool:
    return ".." not in Path(text).parts
