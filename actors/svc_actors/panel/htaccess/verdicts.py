"""What a directive can come to."""

from __future__ import annotations

from dataclasses import dataclass
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
class Opinion:
    """`reason`: what is so, and what to do where something is to be done."""

    verdict: Verdict
    reason: str


def same(reason: str) -> Opinion:
    return Opinion(Verdict.SAME, reason)


def harmless(reason: str) -> Opinion:
    return Opinion(Verdict.HARMLESS, reason)


def blocks(reason: str) -> Opinion:
    return Opinion(Verdict.BLOCKS, reason)


UNKNOWN: Final = blocks("It is not known here. Find out what it does before the site moves.")
