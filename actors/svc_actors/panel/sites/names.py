"""Names of sites: which texts are valid names, and their canonical form.

A name is stored in the ASCII form of IDNA 2008 (RFC 5891): `bücher.example` is `xn--bcher-kva.example`. Text that UTS
#46 would map to something else (full-width letters, ligatures, ...) is refused rather than mapped, since two texts that
look different must not silently be one name; only capitals are mapped. If letters of other scripts look like Latin
ones, they still make another name, which is shown as `xn--...` everywhere.

The public suffix list (publicsuffix.org) decides which names belong to one holder; the package `publicsuffixlist`
contains a copy of the list. Everything below `example.co.uk` belongs to the holder of that name, and `co.uk` belongs to
nobody.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Final

import idna
from publicsuffixlist import PublicSuffixList

from svc_common.errors import ServiceError, invalid

LONGEST_NAME: Final = 253
_NEVER_PUBLIC: Final = {
    "localhost": "it is each machine itself",
    "local": "it is for names of a local network",
    "internal": "it is for names of private networks",
    "invalid": "it is for names that do not exist",
    "onion": "it is for services of Tor",
    "arpa": "it is for the DNS itself",
    "alt": "it is for names outside of the DNS",
}
"""Top-level names that never lead a visitor here, and what they are for (RFC 6761, 6762, 7686, 9476, 3172; ICANN
reserved .internal in July 2024). `.test` and `.example` are allowed: they are for trials, on any server."""


@dataclass(frozen=True)
class SiteName:
    name: str
    """The name in lower case and in its ASCII form."""
    registrable: str
    """The part of the name that was registered: one label below a public suffix."""

    @property
    def with_www(self) -> SiteName | None:
        """`www.` of a registered name that is none itself; people expect no www.shop.example.org."""
        www = f"www.{self.name}"
        if self.name != self.registrable or self.name.startswith("www.") or len(www) > LONGEST_NAME:
            return None
        return SiteName(www, self.registrable)


def site_name(text: str) -> SiteName:
    """The canonical form of what a caller wrote. Raises `invalid`."""
    lowered = text.strip().removesuffix(".").lower()
    if lowered and "" in lowered.split("."):
        raise _refused(text, "It has a dot too many.")
    if len(text) > LONGEST_NAME or not unicodedata.is_normalized("NFC", lowered):
        raise _refused(text)
    try:
        if idna.uts46_remap(lowered, std3_rules=True, transitional=False) != lowered:
            raise _refused(text, "It contains characters that the DNS replaces by others.")
        name = idna.encode(lowered, std3_rules=True).decode()
    except idna.IDNAError:
        raise _refused(text) from None
    labels = name.split(".")
    if len(name) > LONGEST_NAME or len(labels) < 2:
        raise _refused(text)
    if not (labels[-1].isalpha() or labels[-1].startswith("xn--")):
        raise _refused(text, "A name that ends in a number is an IP address.")
    if (use := _NEVER_PUBLIC.get(labels[-1])) is not None:
        raise invalid(f"No public domain ends in .{labels[-1]}: {use}.", hint="Give another domain.")
    registrable = _suffixes().privatesuffix(name)
    if registrable is None:
        raise invalid(
            f"{name} is a public suffix: names below it belong to many.",
            hint="Give a name below it that is yours.",
        )
    return SiteName(name, registrable)


def is_below(name: str, other: str) -> bool:
    """Whether `name` is `other` or a subdomain of it."""
    return name == other or name.endswith(f".{other}")


def top_level(name: str) -> str:
    """`.test` of `shop.example.test`."""
    return f".{name.rpartition('.')[2]}"


def may_be_public(name: str) -> bool:
    """Whether the name ends in a top-level domain that exists. `.test`, `.example` and `.lan` do not."""
    return _public_suffixes().publicsuffix(name) is not None


@cache
def _public_suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=False)


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def _refused(text: str, why: str = "") -> ServiceError:
    shown = text[:80].encode("ascii", "backslashreplace").decode()
    return invalid(
        f"{shown!r} is not a domain name. {why}".strip(),
        hint="Give a name such as shop.example.org: at least two labels of letters, digits and dashes.",
    )
