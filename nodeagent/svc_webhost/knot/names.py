"""DNS names in their canonical form: A-labels in lower case, without the final dot. Invalid names are a ValueError.

Underscores are allowed (`_dmarc`, `_443._tcp`), and `*` as the first label if the caller allows it.
"""

from __future__ import annotations

import re
from typing import Final

import idna

LONGEST_NAME: Final = 253
LONGEST_LABEL: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
_HOST_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")


def to_ascii(name: str, *, wildcard: bool = False) -> str:
    """Any name of the DNS. `wildcard`: its first label may be `*`."""
    labels = _labels(name)
    star = wildcard and len(labels) > 1 and labels[0] == "*"
    for label in labels[1:] if star else labels:
        if _LABEL.fullmatch(label) is None:
            raise ValueError(f"the part {label!r} of the name may have letters, digits, dashes and underscores only")
    return ".".join(labels)


def host_name(name: str) -> str:
    """The full name of a host, such as an MX target: two labels at least, no underscores, no wildcard, no address."""
    labels = _labels(name)
    for label in labels:
        if _HOST_LABEL.fullmatch(label) is None:
            raise ValueError(f"the part {label!r} of a host's name may have letters, digits and dashes only")
    if len(labels) < 2:
        raise ValueError("a host is given by its full name, such as mail.example.com")
    if labels[-1].isdigit():
        raise ValueError("this is an address or ends in a number; a host is given by its name")
    return ".".join(labels)


def is_within(name: str, zone: str) -> bool:
    """Whether `name` is `zone` or below it: by labels, not by letters (`badexample.com` is not in `example.com`)."""
    return name == zone or name.endswith("." + zone)


def _labels(name: str) -> list[str]:
    if not name.isascii():
        try:
            name = idna.uts46_remap(name, std3_rules=False, transitional=False)
        except idna.IDNAError:
            raise ValueError("the name has characters that names of the DNS cannot have") from None
    labels = name.lower().removesuffix(".").split(".")
    labels = [_a_label(label) for label in labels]
    if len(".".join(labels)) > LONGEST_NAME:
        raise ValueError(f"a name has at most {LONGEST_NAME} characters")
    return labels


def _a_label(label: str) -> str:
    if not label:
        raise ValueError("a part of the name is empty")
    if not label.isascii():
        try:
            return idna.encode(label).decode()
        except (idna.IDNAError, UnicodeError):
            raise ValueError(f"the part {label!r} cannot be written in the DNS") from None
    if len(label) > LONGEST_LABEL:
        raise ValueError(f"a part of a name has at most {LONGEST_LABEL} characters")
    if label.startswith("xn--"):
        try:
            idna.ulabel(label)
        except (idna.IDNAError, UnicodeError):
            raise ValueError(f"the part {label!r} is no valid A-label") from None
    return label
