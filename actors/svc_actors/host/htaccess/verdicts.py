"""What a directive can come to, and what the panel could be told instead of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """TRANSLATED: the panel has been told the same. SAME: nginx does so without being told. HARMLESS: without it
    visitors get the same pages. BLOCKS: without it something else is served, or something to somebody who shall not
    have it; so is everything that is not known."""

    TRANSLATED = "translated"
    SAME = "same"
    HARMLESS = "harmless"
    BLOCKS = "blocks"


@dataclass(frozen=True)
class Redirected:
    """A redirect of the site, as the panel has it or should."""

    path: str
    target: str
    status: int
    below: bool


@dataclass(frozen=True)
class HttpsForced:
    """Visitors of HTTP are to be sent to HTTPS."""


@dataclass(frozen=True)
class NameRedirected:
    """Visitors of this name of the site are to be sent to its primary one."""

    name: str


@dataclass(frozen=True)
class Denied:
    """A denied path of the site, as the panel has it or should."""

    pattern: str


@dataclass(frozen=True)
class Protected:
    """A protected path of the site, as the panel should have it. `logins`: each with what its password is compared
    with."""

    path: str
    logins: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True)
class PhpSet:
    """A setting of the site's PHP, as `PhpSettings` names it."""

    setting: str
    value: int | bool | str


Wish = Redirected | Denied | Protected | HttpsForced | NameRedirected | PhpSet


@dataclass(frozen=True)
class Opinion:
    """`reason`: what is so, and what to do where something is to be done. `wishes`: what the panel has to be told for
    a line that blocks to be TRANSLATED; none where it cannot be."""

    verdict: Verdict
    reason: str
    wishes: tuple[Wish, ...] = ()


def same(reason: str) -> Opinion:
    return Opinion(Verdict.SAME, reason)


def harmless(reason: str) -> Opinion:
    return Opinion(Verdict.HARMLESS, reason)


def translated(reason: str) -> Opinion:
    return Opinion(Verdict.TRANSLATED, reason)


def blocks(reason: str, *wishes: Wish) -> Opinion:
    return Opinion(Verdict.BLOCKS, reason, wishes)


def past(link: str) -> Opinion:
    """Of what is kept from visitors by an address that is not the only one."""
    return blocks(f"Visitors would come there by the link {link}, past it: remove the link, or give up what it keeps.")


UNKNOWN: Final = blocks("It is not known here. Find out what it does before the site moves.")
