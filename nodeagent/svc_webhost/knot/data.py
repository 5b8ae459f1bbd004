"""The data of records of every supported type: logical values, fully validated, and their form in the DNS.

One model per type, distinguished by `type`. The logical value is stored and shown (one text, however long; names as
A-labels); only `rdata` knows its form in a zone. A value that a name server would refuse is refused here, with an
explanation.
"""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Final, Literal

import dns.rdata
import dns.rdataclass
import dns.rdatatype
from dns.rdtypes.ANY.TXT import TXT
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from svc_webhost.knot.names import host_name, to_ascii

LONGEST_TEXT: Final = 4096
"""The most bytes of a TXT record, enough for every DKIM key. A DNS answer has room for 65,535 bytes, including
everything else in it."""
_STRING: Final = 255
"""The most bytes of one character-string (RFC 1035, section 3.3): a longer text is split into several of them."""
_LONGEST_CAA: Final = 1024


class RecordType(StrEnum):
    A = "A"
    AAAA = "AAAA"
    CNAME = "CNAME"
    MX = "MX"
    TXT = "TXT"
    SRV = "SRV"
    CAA = "CAA"
    NS = "NS"
    PTR = "PTR"
    TLSA = "TLSA"
    SSHFP = "SSHFP"
    DS = "DS"


def _host_or_none(text: str) -> str:
    return text if text == "." else host_name(text)


def _printable(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("must be text without control characters")
    return text


def _text(text: str) -> str:
    if len(_printable(text).encode()) > LONGEST_TEXT:
        raise ValueError(f"must have at most {LONGEST_TEXT} bytes")
    return text


def _hexadecimal(text: str) -> str:
    digits = "".join(text.split()).lower()
    if not digits or len(digits) % 2 or re.fullmatch(r"[0-9a-f]+", digits) is None:
        raise ValueError("must be hexadecimal digits, two a byte")
    return digits


def _alias_target(text: str) -> str:
    """The target of an alias need not be a host name: DKIM keys are delegated as `s1._domainkey.example.net`."""
    name = to_ascii(text)
    if "." not in name:
        raise ValueError("a target is given by its full name, such as www.example.com")
    return name


def _caa_value(text: str) -> str:
    if re.search(r"[^\x20-\x7e]", text):
        raise ValueError("must be printable ASCII")
    return text


_NAME_PATTERN: Final = r"^[^\s\u0000-\u001f\u007f]+$"
_TEXT_PATTERN: Final = r"^[^\u0000-\u001f\u007f]*$"
_HEX_PATTERN: Final = r"^[0-9A-Fa-f\s]+$"

Host = Annotated[
    str,
    Field(
        min_length=1,
        max_length=254,
        json_schema_extra={"pattern": _NAME_PATTERN},
        description="The full name of a host.",
    ),
    AfterValidator(host_name),
]
HostOrNone = Annotated[
    str,
    Field(
        min_length=1,
        max_length=254,
        json_schema_extra={"pattern": _NAME_PATTERN},
        description="The full name of a host; `.` says that there is none.",
    ),
    AfterValidator(_host_or_none),
]
Byte = Annotated[int, Field(ge=0, le=255)]
Short = Annotated[int, Field(ge=0, le=65_535)]
Hexadecimal = Annotated[
    str, Field(min_length=2, max_length=4096, json_schema_extra={"pattern": _HEX_PATTERN}), AfterValidator(_hexadecimal)
]


def _address_text(value: object) -> object:
    """Require the usual text form of an address: otherwise numbers would be accepted as addresses."""
    if isinstance(value, int | bytes):
        raise ValueError("must be an address")
    return value


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def rdata(self) -> dns.rdata.Rdata:
        """The record's data as a zone file has it. Every name in it is absolute."""
        raise NotImplementedError


class AData(_Data):
    type: Literal[RecordType.A]
    address: Annotated[IPv4Address, BeforeValidator(_address_text)]

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, str(self.address))


class AaaaData(_Data):
    type: Literal[RecordType.AAAA]
    address: Annotated[IPv6Address, BeforeValidator(_address_text)]

    @model_validator(mode="after")
    def _plain(self) -> AaaaData:
        if self.address.scope_id is not None or self.address.ipv4_mapped is not None:
            raise ValueError("must be an IPv6 address without a zone, and not an IPv4 address in disguise")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, str(self.address))


class CnameData(_Data):
    type: Literal[RecordType.CNAME]
    target: Annotated[
        str,
        Field(min_length=1, max_length=254, json_schema_extra={"pattern": _NAME_PATTERN}),
        AfterValidator(_alias_target),
    ]

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.target}.")


class MxData(_Data):
    """`exchange` is `.` where the name takes no mail (RFC 7505); its preference is 0 then."""

    type: Literal[RecordType.MX]
    preference: Short
    exchange: HostOrNone

    @model_validator(mode="after")
    def _null(self) -> MxData:
        if self.exchange == "." and self.preference != 0:
            raise ValueError("must have the preference 0 with the exchange . (null MX)")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.preference} {_absolute(self.exchange)}")


class TxtData(_Data):
    """`text` as readers get it, in one piece: quotes, semicolons and backslashes stand for themselves."""

    type: Literal[RecordType.TXT]
    text: Annotated[
        str, Field(max_length=LONGEST_TEXT, json_schema_extra={"pattern": _TEXT_PATTERN}), AfterValidator(_text)
    ]

    def rdata(self) -> dns.rdata.Rdata:
        return TXT(dns.rdataclass.IN, dns.rdatatype.TXT, split_text(self.text.encode()))


class SrvData(_Data):
    """`target` is `.` where the service is decidedly not offered (RFC 2782)."""

    type: Literal[RecordType.SRV]
    priority: Short
    weight: Short
    port: Short
    target: HostOrNone

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.priority} {self.weight} {self.port} {_absolute(self.target)}")


class CaaTag(StrEnum):
    ISSUE = "issue"
    ISSUEWILD = "issuewild"
    ISSUEMAIL = "issuemail"
    IODEF = "iodef"


class CaaData(_Data):
    """`critical`: an authority that does not know the tag must not issue (RFC 8659)."""

    type: Literal[RecordType.CAA]
    critical: bool = False
    tag: CaaTag
    value: Annotated[
        str,
        Field(max_length=_LONGEST_CAA, json_schema_extra={"pattern": r"^[\u0020-\u007e]*$"}),
        AfterValidator(_caa_value),
    ]

    @model_validator(mode="after")
    def _reported_where(self) -> CaaData:
        if self.tag is CaaTag.IODEF and not self.value.startswith(("mailto:", "https://", "http://")):
            raise ValueError("an iodef is a URL: mailto:security@example.com, or one that starts with https://")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        flags = 128 if self.critical else 0
        # The value as in a zone file: among printable ASCII characters, only these two are special within quotes.
        value = self.value.replace("\\", "\\\\").replace('"', '\\"')
        return _rdata(self.type, f'{flags} {self.tag} "{value}"')


class NsData(_Data):
    type: Literal[RecordType.NS]
    target: Host

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.target}.")


class PtrData(_Data):
    type: Literal[RecordType.PTR]
    target: Host

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.target}.")


class TlsaData(_Data):
    """The numbers of RFC 6698: usage 0 to 3, selector 0 or 1, matching 0 (whole), 1 (SHA-256) or 2 (SHA-512)."""

    type: Literal[RecordType.TLSA]
    usage: Annotated[int, Field(ge=0, le=3)]
    selector: Annotated[int, Field(ge=0, le=1)]
    matching: Annotated[int, Field(ge=0, le=2)]
    certificate: Hexadecimal

    @model_validator(mode="after")
    def _length(self) -> TlsaData:
        _check_length(self.certificate, {1: 32, 2: 64}.get(self.matching), f"matching {self.matching}")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.usage} {self.selector} {self.matching} {self.certificate}")


class SshfpData(_Data):
    """`algorithm`: 1 RSA, 2 DSA, 3 ECDSA, 4 Ed25519, 6 Ed448; `fingerprint_type`: 1 SHA-1, 2 SHA-256 (RFC 4255)."""

    type: Literal[RecordType.SSHFP]
    algorithm: Literal[1, 2, 3, 4, 6]
    fingerprint_type: Literal[1, 2]
    fingerprint: Hexadecimal

    @model_validator(mode="after")
    def _length(self) -> SshfpData:
        _check_length(self.fingerprint, {1: 20, 2: 32}[self.fingerprint_type], f"type {self.fingerprint_type}")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.algorithm} {self.fingerprint_type} {self.fingerprint}")


class DsData(_Data):
    """A digest of a key of a zone below this one, which vouches for that key; `digest_type`: 1 SHA-1, 2 SHA-256, 4
    SHA-384 (RFC 4034)."""

    type: Literal[RecordType.DS]
    key_tag: Short
    algorithm: Literal[5, 7, 8, 10, 13, 14, 15, 16]
    digest_type: Literal[1, 2, 4]
    digest: Hexadecimal

    @model_validator(mode="after")
    def _length(self) -> DsData:
        _check_length(self.digest, {1: 20, 2: 32, 4: 48}[self.digest_type], f"digest type {self.digest_type}")
        return self

    def rdata(self) -> dns.rdata.Rdata:
        return _rdata(self.type, f"{self.key_tag} {self.algorithm} {self.digest_type} {self.digest}")


RecordData = Annotated[
    AData
    | AaaaData
    | CnameData
    | MxData
    | TxtData
    | SrvData
    | CaaData
    | NsData
    | PtrData
    | TlsaData
    | SshfpData
    | DsData,
    Field(discriminator="type"),
]


def split_text(text: bytes) -> tuple[bytes, ...]:
    """The character-strings of a text, each as long as possible; an empty text is one empty string."""
    return tuple(text[start : start + _STRING] for start in range(0, len(text), _STRING)) or (b"",)


def _rdata(type_: RecordType, text: str) -> dns.rdata.Rdata:
    return dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(type_), text)


def _absolute(host: str) -> str:
    return host if host == "." else f"{host}."


def _check_length(digits: str, wanted: int | None, what: str) -> None:
    if wanted is not None and len(digits) != 2 * wanted:
        raise ValueError(f"{what} has {2 * wanted} hexadecimal digits, and these are {len(digits)}")
