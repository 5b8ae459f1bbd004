"""The platform (firmware, TPM) of a machine, an image or a backup copy, read from its row."""

from __future__ import annotations

from svc_actors.store import Record
from svc_nodeagent.protocol import Firmware as Firmware
from svc_nodeagent.protocol import Platform as Platform
from svc_nodeagent.protocol import Tpm as Tpm


def platform_of(row: Record) -> Platform:
    """The platform of a row with the columns `firmware` and `tpm`."""
    return Platform(firmware=Firmware(row["firmware"]), tpm=Tpm(row["tpm"]))
