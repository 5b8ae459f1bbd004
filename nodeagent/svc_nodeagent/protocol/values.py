"""The types that frames and operations consist of: ids, addresses, and a few enumerations."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface
from typing import Annotated, Final, NewType, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

AGENT_PATH = "/agent"
STREAM_ALPN = "svc-stream/1"
MAX_FRAME_BYTES = 4 * 1024 * 1024

# Limits of a frame's parts. A peer's texts are stored in records, logs and audit rows, so each has a limit far below
# that of a frame.
MOST_TEXT = 4_096
"""Characters of a sentence for people; longer ones are cut."""
MANY = 20_000
"""Entries of a list of machines, addresses or readings: a frame cannot hold more records of 200 bytes."""
MOST_CALLS = 64
"""Host calls in a result: a creation makes some 30."""
MOST_SENTENCES = 64
"""Entries of a node's row: checks, and features that its host lacks, each with a sentence."""
FEW = 1_024
"""Entries of any other list: a host's machine types are some 100, its addresses fewer."""

_Ip = TypeVar("_Ip", bound=IPv4Interface | IPv6Interface | IPv4Network | IPv6Network)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def _storable(given: object) -> object:
    return _UNSTORABLE.sub("\ufffd", given) if isinstance(given, str) else given


OperationId = NewType("OperationId", str)
AnyText = Annotated[str, BeforeValidator(_storable)]
"""Every text of the protocol. PostgreSQL can store neither U+0000 nor half of a surrogate pair; such characters are
replaced instead of refused, because a refused result would end the connection, and be sent again from the journal on
every next one."""
Id = Annotated[OperationId, BeforeValidator(_storable), Field(max_length=200)]
Name = Annotated[AnyText, Field(max_length=256)]
"""A name, version, digest or account: one word from the host."""
Secret = Annotated[AnyText, Field(max_length=1_024)]
"""Fields of this type say `repr=False`, so that no traceback shows them."""
Pem = Annotated[AnyText, Field(max_length=16_384)]
Text = Annotated[AnyText, AfterValidator(lambda text: text[:MOST_TEXT])]
"""A text that is cut at the limit instead of refused, so that a host whose tool has printed too much can still
report."""
MacAddress = Annotated[AnyText, Field(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")]


def _without_zone(given: _Ip) -> _Ip:
    """A zone (`%eth0`) means something on one host only, and no database accepts an address with one."""
    if "%" in str(given):
        raise ValueError("an address with a zone is none to others")
    return given


GuestInterface = Annotated[IPv4Interface | IPv6Interface, AfterValidator(_without_zone)]
NetworkAddress = Annotated[IPv4Network | IPv6Network, AfterValidator(_without_zone)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Size = Annotated[int, Field(ge=0, le=2**53)]
Gibibytes = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A size of a disk."""
Mebibytes = Annotated[int, Field(ge=0, le=2**40)]
Quantity = Annotated[float, Field(ge=0, le=2**40)]
"""A load, or GiB of a host: values that are summed over all nodes and multiplied by an overcommit stay numbers."""
Rate = Annotated[float, Field(ge=0, le=2**53)]
"""A rate per second, for graphs."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Version = Annotated[int, Field(ge=0, le=10_000)]
Generation = Annotated[int, Field(ge=0, le=2**53)]
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def _a_moment(said: datetime) -> datetime:
    return max(_FIRST, min(said if said.tzinfo is not None else said.replace(tzinfo=UTC), _LAST))


Moment = Annotated[datetime, AfterValidator(_a_moment)]
"""A time from a clock that may be wrong. Without a zone it is UTC; it is clamped to the range in which calculations
with it are safe."""


def _an_address(text: str) -> str:
    _without_zone(ip_interface(text))
    return text


Address = Annotated[AnyText, Field(max_length=64), AfterValidator(_an_address)]
"""An address as text, with or without a prefix length."""


class Wire(BaseModel):
    """Base of frames and operations. What a peer sends is stored in records: a number that no column can hold is
    refused, and a character that the database cannot store is replaced. So every text is an `AnyText`, and every number
    has an upper and a lower bound."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DomainState(StrEnum):
    """The state of a guest on its host. `absent`: the host has no such domain."""

    RUNNING = "running"
    PAUSED = "paused"
    SHUTTING_DOWN = "shutting_down"
    STOPPED = "stopped"
    CRASHED = "crashed"
    ABSENT = "absent"


class StateCause(StrEnum):
    """Why a guest is off or paused, if its host knows. A host that was rebooted does not."""

    GUEST = "guest"
    """The guest shut down, by itself or on request."""
    FORCED = "forced"
    """Somebody on the host stopped it."""
    IO_ERROR = "io_error"
    """The guest is paused because a write to its disk failed, usually because the host's disk is full."""


class Topology(StrEnum):
    NAT = "nat"
    BRIDGED = "bridged"
    ROUTED = "routed"


class FailureCode(StrEnum):
    """Why an operation failed on the host; the controller turns it into an error of the API."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    CAPACITY = "capacity"
    UNSUPPORTED = "unsupported"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    HOST = "host"
    INTERRUPTED = "interrupted"
    TARGET = "target"
    """The place of the backups that the operation named has failed. Since protocol version 5."""
