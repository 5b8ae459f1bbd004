"""Fields that requests about machines and plans share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from svc.registry.shapes import Shape


def _at_most_32_kib(text: str) -> str:
    """Characters outside ASCII are several bytes each."""
    if len(text.encode()) > 32_768:
        raise ValueError("holds more than 32 KiB")
    return text


MachineName = Annotated[
    str,
    Shape(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        "1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends",
    ),
]


def is_address_or_localhost(hostname: str) -> bool:
    """Whether programs read this name as an address: its last part is a number (RFC 3696, section 2), or `localhost`
    (RFC 6761, section 6.3)."""
    last = hostname.rpartition(".")[2]
    return last.isdigit() or last == "localhost"


def _no_address(hostname: str) -> str:
    if is_address_or_localhost(hostname):
        raise ValueError("must be a name of its own: its last part is neither a number nor localhost")
    return hostname


Hostname = Annotated[
    str,
    # Linux takes 64 characters, also where an image sets the whole name and not its first part.
    Field(max_length=64, description="Host name of the guest; the machine's name by default."),
    Shape(
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*",
        "a host name: lowercase letters, digits and hyphens, in parts of 63 at most with dots between them",
    ),
    AfterValidator(_no_address),
]
Vcpus = Annotated[int, Field(ge=1, le=256, description="Virtual processors.")]
MemoryMib = Annotated[int, Field(ge=64, le=4 * 1024 * 1024, description="Memory in MiB.")]
SshKeyText = Annotated[str, Field(max_length=16384, description="A public key, as in ~/.ssh/id_ed25519.pub.")]
UserData = Annotated[
    str,
    Field(min_length=1, max_length=32_768, description="For cloud-init of the first boot: a script, or #cloud-config."),
    AfterValidator(_at_most_32_kib),
]
GivenPassword = Annotated[str, Field(max_length=1024)]
DiskGib = Annotated[int, Field(ge=1, le=64 * 1024, description="Size of the disk in GiB.")]
Confirmation = Annotated[str, Field(max_length=64, description="The machine's name, repeated.")]
