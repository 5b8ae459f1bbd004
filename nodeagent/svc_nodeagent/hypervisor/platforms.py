"""The platforms that machines of this host can have, and how they are configured in libvirt.

libvirt finds the file of a UEFI by the descriptions that the firmware's package brings; the agent reads the same ones,
to report in advance what is missing. A UEFI with Secure Boot counts only if keys are enrolled in it: without keys it
would start any software.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import PLATFORM_FEATURES, TPM_FEATURE, FailureCode, Firmware, Platform, Tpm

DESCRIPTIONS: Final = (Path("/etc/qemu/firmware"), Path("/usr/share/qemu/firmware"))
"""The folders with descriptions of QEMU's firmware images. A file in the first folder replaces a file of the same name
in the second."""
TPM_PROGRAMS: Final = ("swtpm", "swtpm_setup")
_PACKAGES: Final = {Firmware.UEFI.value: "ovmf", Firmware.UEFI_SECURE.value: "ovmf", TPM_FEATURE: "swtpm-tools"}
_NAMES: Final = {
    Firmware.UEFI.value: "UEFI",
    Firmware.UEFI_SECURE.value: "UEFI with Secure Boot",
    TPM_FEATURE: "a TPM 2.0",
}


@dataclass(frozen=True)
class PlatformFeatures:
    """`lacks`: for each of `PLATFORM_FEATURES` that is not in `found`, why it is missing and how to get it."""

    found: tuple[str, ...]
    lacks: Mapping[str, str]


def platform_features(descriptions: tuple[Path, ...] = DESCRIPTIONS) -> PlatformFeatures:
    found = set(_described(descriptions))
    if all(shutil.which(program) for program in TPM_PROGRAMS):
        found.add(TPM_FEATURE)
    return PlatformFeatures(
        found=tuple(each for each in PLATFORM_FEATURES if each in found),
        lacks={
            each: f"the node lacks the package for {_NAMES[each]}: install {_PACKAGES[each]} there"
            for each in PLATFORM_FEATURES
            if each not in found
        },
    )


def require_platform(platform: Platform) -> None:
    """Raise `HostError(conflict)` if this host lacks a feature that the machine needs; the error names the first
    one."""
    lacks = platform_features().lacks
    for need in platform.needs:
        if need in lacks:
            raise HostError(
                FailureCode.CONFLICT,
                f"The machine needs {_NAMES[need]}, for which this node lacks the package.",
                f"Install on the node: {_PACKAGES[need]}.",
            )


def add_firmware(system: ElementTree.Element, platform: Platform, nvram: Path) -> None:
    """Extend the element `os` by the firmware. At the machine's first start libvirt creates the file `nvram` from the
    firmware's template."""
    if platform.firmware is Firmware.BIOS:
        return
    system.set("firmware", "efi")
    secure = platform.firmware is Firmware.UEFI_SECURE
    wanted = ElementTree.SubElement(system, "firmware")
    for feature in ("enrolled-keys", "secure-boot"):
        ElementTree.SubElement(wanted, "feature", enabled="yes" if secure else "no", name=feature)
    if secure:
        ElementTree.SubElement(system, "loader", secure="yes")
    ElementTree.SubElement(system, "nvram").text = str(nvram)


def add_tpm(devices: ElementTree.Element, platform: Platform) -> None:
    """Add a TPM. Its state is not removed with the definition, which somebody may remove by hand: the agent removes the
    state with the machine."""
    if platform.tpm is Tpm.NONE:
        return
    tpm = ElementTree.SubElement(devices, "tpm", model="tpm-crb")
    ElementTree.SubElement(tpm, "backend", type="emulator", version=platform.tpm.value, persistent_state="yes")


def _described(folders: tuple[Path, ...]) -> Iterator[str]:
    """The kinds of UEFI firmware in the descriptions. A description that cannot be read is ignored."""
    paths: dict[str, Path] = {}
    for folder in reversed(folders):
        paths |= {path.name: path for path in folder.glob("*.json")}
    for path in paths.values():
        try:
            described = json.loads(path.read_bytes())
            if _is_flash_of_q35(described):
                features = set(described["features"])
                if "secure-boot" not in features:
                    yield Firmware.UEFI.value
                elif "enrolled-keys" in features:
                    yield Firmware.UEFI_SECURE.value
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _is_flash_of_q35(described: dict[str, Any]) -> bool:
    mapping = described["mapping"]
    return (
        "uefi" in described["interface-types"]
        and mapping["device"] == "flash"
        and any(
            target["architecture"] == "x86_64" and any(machine.startswith("pc-q35-") for machine in target["machines"])
            for target in described["targets"]
        )
        and all(Path(mapping[part]["filename"]).is_file() for part in ("executable", "nvram-template"))
    )
