"""How the readers of CAA and TXT records interpret a value, and what a person who pastes a value means.

A zone serves any text. Authorities take a CAA value that is not of RFC 8659's form for one that allows nobody, and mail
servers ignore a policy that starts with a quote; neither says so to anybody.

Rejected: enforcing this in the models of records. These models also read the records that a zone already has, which
must stay as they are served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from svc_webhost.knot.data import CaaData, CaaTag, RecordData, TxtData

_LABEL: Final = r"[A-Za-z0-9](?:-*[A-Za-z0-9])*"
_PARAMETER: Final = rf"{_LABEL}[ \t]*=[ \t]*[\x21-\x3a\x3c-\x7e]*"
_ISSUE: Final = re.compile(
    rf"[ \t]*(?P<issuer>{_LABEL}(?:\.{_LABEL})*)?[ \t]*"
    rf"(?:;[ \t]*(?P<parameters>{_PARAMETER}(?:[ \t]*;[ \t]*{_PARAMETER})*)?[ \t]*)?"
)
"""RFC 8659, section 4.2."""
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_CURLY: Final = "\u201c\u201d\u201e"
_QUOTES: Final = f"\"'\u2018\u2019{_CURLY}"


@dataclass(frozen=True)
class Issuer:
    """Who may issue by a CAA record: the authority's domain (empty: nobody may), and the record's parameters for that
    authority."""

    domain: str
    parameters: Mapping[str, str]


def issuer_of(value: str) -> Issuer:
    """Reads the value of an issue, issuewild or issuemail record. Raises `ValueError`."""
    found = _ISSUE.fullmatch(value)
    if found is None:
        raise ValueError(
            "must be the domain of one authority, such as letsencrypt.org, or `;` to allow none. Add a record for each "
            "authority"
        )
    parameters = [each.partition("=") for each in (found["parameters"] or "").split(";") if each.strip()]
    return Issuer((found["issuer"] or "").lower(), {name.strip().lower(): said.strip() for name, _, said in parameters})


def as_meant(data: RecordData) -> RecordData:
    """The record without the quotes and escapes of zone files. Raises `ValueError` for a value that its readers would
    not understand."""
    match data:
        case TxtData():
            return data.model_copy(update={"text": _unquoted(data.text)})
        case CaaData() if data.tag is not CaaTag.IODEF:
            issuer, mark, conditions = data.value.strip().strip(_QUOTES).strip().partition(";")
            # A domain in a zone file ends in a dot, and the one of an authority does not.
            value = f"{issuer.rstrip().removesuffix('.')}{mark}{conditions}"
            if not value:
                raise ValueError("must name an authority, such as letsencrypt.org, or be `;` to allow none")
            issuer_of(value)
            return data.model_copy(update={"value": value})
        case _:
            return data


def _unquoted(text: str) -> str:
    """Readers join the strings of a TXT record without a space (RFC 7208, section 3.3; RFC 6376, section 3.6.2.2)."""
    bare = text.strip()
    if bare.startswith("(") and bare.endswith(")"):
        bare = bare[1:-1].strip()
    if bare[:1] in tuple(_CURLY) and bare[-1:] in tuple(_CURLY):
        bare = f'"{bare[1:-1]}"'
    if not (bare.startswith('"') and bare.endswith('"')):
        # Zone files need this escape outside of quotes; no text that programs read has it.
        return text.replace("\\;", ";")
    if re.fullmatch(rf"(?:{_QUOTED}\s*)+", bare) is None:
        raise ValueError("has quotes that do not match: leave them out, or quote each part of the text")
    joined = b"".join(_unescaped(part[1:-1]) for part in re.findall(_QUOTED, bare)).decode(errors="replace")
    if re.search(r"[\x00-\x1f\x7f\ufffd]", joined):
        raise ValueError("has escapes of bytes that are no text")
    return joined


def _unescaped(text: str) -> bytes:
    """`\\DDD` is one byte in decimal, and `\\X` is X (RFC 1035, section 5.1)."""

    def plain(found: re.Match[bytes]) -> bytes:
        escaped = found[1]
        return bytes([min(int(escaped), 255)]) if len(escaped) == 3 else escaped

    return re.sub(rb"\\(\d{3}|.)", plain, text.encode())
