"""The CPU of a machine's guest: its element of the definition, and how to replace that element alone."""

from __future__ import annotations

import re
from enum import StrEnum
from xml.etree import ElementTree

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import CpuMode, FailureCode


class Accelerator(StrEnum):
    KVM = "kvm"
    TCG = "tcg"


_BASELINE = "Nehalem"
"""x86-64-v2: current distributions need it, and every host of the last decade supports it. The emulator's own default
is older."""

_ELEMENT = re.compile(r"^  <cpu\b[^>]*(?:/>|>.*?^  </cpu>)$", re.MULTILINE | re.DOTALL)
"""The element as libvirt writes it, one level below the domain; `cputune` is another element."""


def cpu_element(mode: CpuMode, accelerator: Accelerator) -> ElementTree.Element:
    """The element `cpu` of the definition. Raises `HostError` (`invalid`) for a processor that guests cannot have on
    this host."""
    emulated = accelerator is Accelerator.TCG
    match mode:
        case CpuMode.DEFAULT if emulated:
            return _baseline()
        case CpuMode.DEFAULT | CpuMode.HOST_MODEL:
            return ElementTree.Element("cpu", mode="host-model", check="partial")
        case CpuMode.HOST_PASSTHROUGH if emulated:
            raise HostError(
                FailureCode.INVALID,
                "This host emulates its guests, so they cannot have the host's processor; nothing was changed.",
                "Choose maximum for all that the emulator offers.",
            )
        case CpuMode.HOST_PASSTHROUGH:
            return ElementTree.Element("cpu", mode="host-passthrough", check="none")
        case CpuMode.MAXIMUM:
            return ElementTree.Element("cpu", mode="maximum", check="none")
        case CpuMode.BASELINE:
            return _baseline()


def with_processor(definition: str, element: ElementTree.Element) -> str:
    """libvirt's definition with this processor; every other byte stays the same."""
    changed, count = _ELEMENT.subn(lambda _: f"  {ElementTree.tostring(element, encoding='unicode')}", definition)
    if count != 1:
        raise HostError(FailureCode.HOST, f"The machine's definition has {count} processors instead of one.")
    return changed


def _baseline() -> ElementTree.Element:
    cpu = ElementTree.Element("cpu", mode="custom", match="exact", check="none")
    ElementTree.SubElement(cpu, "model", fallback="allow").text = _BASELINE
    return cpu
