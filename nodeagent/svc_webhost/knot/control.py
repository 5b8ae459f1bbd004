"""A client of Knot's control socket: speaks the protocol of `knotc` directly, so that a change of a hundred records is
one conversation.

The protocol (libknot/control/control.c of Knot 3.2): a stream of units. A unit is a type, one byte, and for DATA and
EXTRA a number of items, each a code (16 + index), a length of two bytes and that many bytes of text. BLOCK ends a
request and an answer; END ends the conversation. An item's text cannot be mistaken for another field, whatever it
contains: unlike on a command line, nothing is parsed.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeVar

import trio

TIMEOUT: Final = 10.0
"""Seconds for one request and its answer. Knot answers in milliseconds, and reloads many zones in some hundred."""
_FIRST_ITEM: Final = 16
_LONGEST: Final = 0xFFFF
_CHUNK: Final = 65_536

T = TypeVar("T", bound=IntEnum)


class KnotError(Exception):
    """Knot refused a command; the message is its own words."""


class KnotAway(KnotError):  # noqa: N818 - named for what it says
    """Knot does not answer: it is unknown whether it carried out the last command."""


class UnitType(IntEnum):
    END = 0
    DATA = 1
    EXTRA = 2
    BLOCK = 3


class Item(IntEnum):
    """The meaning of a unit's item (`knot_ctl_idx_t`)."""

    COMMAND = 0
    FLAGS = 1
    ERROR = 2
    SECTION = 3
    ITEM = 4
    ID = 5
    ZONE = 6
    OWNER = 7
    TTL = 8
    TYPE = 9
    DATA = 10
    FILTER = 11


@dataclass(frozen=True)
class Unit:
    type: UnitType
    items: Mapping[Item, str]


def encoded(unit: Unit) -> bytes:
    """Raises `KnotError` for a text that is too long for an item."""
    parts = [bytes((unit.type,))]
    for item, text in unit.items.items():
        data = text.encode()
        if len(data) > _LONGEST or b"\0" in data:
            raise KnotError(f"{item.name.lower()} cannot be sent to Knot: it is too long, or has a NUL in it")
        parts.append(struct.pack(">BH", _FIRST_ITEM + item, len(data)) + data)
    return b"".join(parts)


class Decoder:
    """Decodes units from a stream that comes in pieces of any size. A unit of data is complete when the next one
    starts."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._open: tuple[UnitType, dict[Item, str]] | None = None

    def feed(self, data: bytes | bytearray) -> Iterator[Unit]:
        """Raises `KnotError` for input that is not this protocol."""
        self._buffer += data
        position = 0
        while position < len(self._buffer):
            code = self._buffer[position]
            if code < _FIRST_ITEM:
                if self._open is not None:
                    yield Unit(*self._open)
                    self._open = None
                kind = _known(UnitType, code)
                if kind in (UnitType.DATA, UnitType.EXTRA):
                    self._open = (kind, {})
                else:
                    yield Unit(kind, {})
                position += 1
                continue
            if len(self._buffer) < position + 3:
                break
            (length,) = struct.unpack_from(">H", self._buffer, position + 1)
            if len(self._buffer) < position + 3 + length:
                break
            if self._open is None:
                raise KnotError("Knot's control socket said an item outside of a unit")
            text = bytes(self._buffer[position + 3 : position + 3 + length])
            self._open[1][_known(Item, code - _FIRST_ITEM)] = text.decode(errors="backslashreplace")
            position += 3 + length
        del self._buffer[:position]


class Conversation:
    """One connection to the control socket. Commands are answered one after the other."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._decoder = Decoder()

    async def ask(self, command: str, **items: str) -> list[Unit]:
        """Knot's answer to `command`. Raises `KnotError` with its words, `KnotAway` if it does not answer."""
        request = Unit(
            UnitType.DATA, {Item.COMMAND: command} | {Item[name.upper()]: text for name, text in items.items()}
        )
        units: list[Unit] = []
        try:
            with trio.fail_after(TIMEOUT):
                await self._stream.send_all(encoded(request) + encoded(Unit(UnitType.BLOCK, {})))
                while not units or units[-1].type not in (UnitType.BLOCK, UnitType.END):
                    data = await self._stream.receive_some(_CHUNK)
                    if not data:
                        raise KnotAway("Knot ended the conversation before it had answered")
                    units.extend(self._decoder.feed(data))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise KnotAway(f"Knot does not answer {command}: {error or type(error).__name__}") from error
        for unit in units:
            if Item.ERROR in unit.items:
                where = unit.items.get(Item.ZONE)
                raise KnotError(f"{where}: {unit.items[Item.ERROR]}" if where else unit.items[Item.ERROR])
        return [unit for unit in units if unit.type in (UnitType.DATA, UnitType.EXTRA)]


@asynccontextmanager
async def conversation(socket: Path) -> AsyncIterator[Conversation]:
    """Raises `KnotAway` if nothing listens at `socket`."""
    try:
        with trio.fail_after(TIMEOUT):
            stream = await trio.open_unix_socket(str(socket))
    except (OSError, trio.TooSlowError) as error:
        raise KnotAway(f"Knot's control socket {socket} cannot be reached: {error or type(error).__name__}") from error
    try:
        yield Conversation(stream)
    finally:
        # Closing the connection has the same effect as END, and cannot fail.
        await trio.aclose_forcefully(stream)


def _known(kind: type[T], code: int) -> T:
    try:
        return kind(code)
    except ValueError:
        raise KnotError(f"Knot's control socket said the unknown {kind.__name__} {code}") from None
