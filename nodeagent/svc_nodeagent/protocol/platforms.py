"""A machine's platform: the firmware that boots it, and whether it has a TPM."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from svc_nodeagent.protocol.values import Wire

__all__ = ["PLAIN", "PLATFORM_FEATURES", "TPM_FEATURE", "Firmware", "Platform", "Tpm"]


class Firmware(StrEnum):
    """`UEFI_SECURE` starts what Microsoft's keys for UEFI have signed, and nothing else."""

    BIOS = "bios"
    UEFI = "uefi"
    UEFI_SECURE = "uefi_secure"


class Tpm(StrEnum):
    NONE = "none"
    V2_0 = "2.0"


TPM_FEATURE: Final = "tpm"
PLATFORM_FEATURES: Final = (Firmware.UEFI.value, Firmware.UEFI_SECURE.value, TPM_FEATURE)
"""Features that not every host has: `NodeFacts.platform_features`. Every host has a BIOS."""


class Platform(Wire):
    firmware: Firmware = Firmware.BIOS
    tpm: Tpm = Tpm.NONE

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that a machine's host must have."""
        firmware = () if self.firmware is Firmware.BIOS else (self.firmware.value,)
        return firmware if self.tpm is Tpm.NONE else (*firmware, TPM_FEATURE)


PLAIN: Final = Platform()
"""A BIOS and no TPM: the platform of every machine that was created before there was a choice."""
