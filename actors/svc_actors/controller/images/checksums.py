"""Parsers of publishers' checksum files, one per format. The input is not trusted: a malformed line is ignored, and a
file that names the image twice with different digests is refused."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class ChecksumFormat(StrEnum):
    """GNU: `<hex>  <file>` or `<hex> *<file>` (Debian, Ubuntu, AlmaLinux). BSD: `SHA256 (<file>) = <hex>` (Rocky,
    Fedora). BARE: one digest, alone or before a name (Alpine)."""

    GNU = "gnu"
    BSD = "bsd"
    BARE = "bare"


class NoDigest(Exception):  # noqa: N818 - named for what it says
    """The checksum file has no usable digest of this file."""


_BYTE_ORDER_MARK: Final = "\ufeff"
_LENGTHS: Final = {"sha256": 64, "sha512": 128}
_GNU: Final = re.compile(r"([0-9a-fA-F]+) [ *](?:\./)?(\S+)")
_BSD: Final = re.compile(r"(SHA\d+) \((?:\./)?(\S+)\) = ([0-9a-fA-F]+)")
_BARE: Final = re.compile(r"([0-9a-fA-F]+)(?:\s.*)?")


def find_digest(text: str, file_name: str, algorithm: str, form: ChecksumFormat) -> str:
    """The digest of `file_name` in lower-case hex. Raises `NoDigest`."""
    found = {
        digest.lower()
        for line in text.removeprefix(_BYTE_ORDER_MARK).splitlines()
        if (digest := _of_line(line.strip(), file_name, algorithm, form)) and len(digest) == _LENGTHS[algorithm]
    }
    if len(found) != 1:
        raise NoDigest(
            f"the checksum file says {'several digests' if found else 'no digest'} of {file_name} by {algorithm}"
        )
    return found.pop()


def _of_line(line: str, file_name: str, algorithm: str, form: ChecksumFormat) -> str | None:
    match form:
        case ChecksumFormat.GNU:
            gnu = _GNU.fullmatch(line)
            return gnu[1] if gnu and gnu[2] == file_name else None
        case ChecksumFormat.BSD:
            bsd = _BSD.fullmatch(line)
            return bsd[3] if bsd and bsd[2] == file_name and bsd[1].lower() == algorithm else None
        case ChecksumFormat.BARE:
            bare = _BARE.fullmatch(line)
            return bare[1] if bare else None
