"""Fields that requests about machines and plans share, also labels and the selector that filters by them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from svc.registry.paging import EVERYTHING, Condition
from svc.registry.shapes import Shape

_KEY = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?)?"
_MOST = 32
_WHAT = "letters, digits, dots, slashes, hyphens and underscores, 63 at most, with a letter or digit at both ends"


Labels = Annotated[
    dict[
        Annotated[str, Shape(_KEY, f"a label's name: {_WHAT}")],
        Annotated[str, Shape(_VALUE, f"a label's value: {_WHAT}, or empty")],
    ],
    Field(description='All labels, as {"env": "production"}; {} removes them.', max_length=_MOST),
]
Selector = Annotated[
    str,
    Field(
        max_length=500,
        description="Only machines with these labels: env=production (this value) or web (any value), with commas "
        "between them.",
    ),
    Shape(
        rf"{_KEY}(={_VALUE})?(,{_KEY}(={_VALUE})?)*", "labels with commas between them: env=production, or env alone"
    ),
]


def _at_most_32_kib(text: str) -> str:
    """Limits the bytes of a text: a character outside ASCII has several."""
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
    # The limit of Linux, which also applies to images that set the whole name instead of its first part.
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


def has_labels(selector: str | None, column: str = "vms.labels") -> Condition:
    """True for rows whose labels (in `column`) include every label of the selector. If the selector gives a value for a
    label, the value must be equal."""
    if selector is None:
        return EVERYTHING
    terms = [term.partition("=") for term in selector.split(",")]
    keys = [key for key, equals, _ in terms if not equals]
    # A selector with two values for one key matches no machine, because a machine has one value for each key.
    values = [{key: value} for key, equals, value in terms if equals]
    clauses = [f"{column} <> '{{}}'", f"{column} ?& $1::text[]"]
    clauses += [f"{column} @> ${number}::jsonb" for number, _ in enumerate(values, start=2)]
    return Condition(" AND ".join(clauses), (keys, *values))
