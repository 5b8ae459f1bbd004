"""Filters the messages from the source's libvirt to this host's: only the calls that the migration of this one machine
needs are passed on.

libvirt's protocol has no restricted clients: a client that can connect to its socket has root's rights. So messages
from the source are read here first (libvirt's rpc/virnetprotocol.x, remote/remote_protocol.x). Only the few calls that
a move consists of are passed on, and the definition in the call that prepares the move must be one that the machine may
have (`live_definition`). Any other message ends the move.

libvirt's own access control (polkit) is not enough: it permits or refuses a migration as a whole, and does not look at
the definition that comes with the migration, which may name any file of the host.

Why: docs/decisions/0029-migration.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

import structlog
import trio

from svc_nodeagent.hypervisor.live_definition import ArrivingMachine, Refused, require_own
from svc_nodeagent.wrapped_stream import WrappedStream

_HEAD: Final = struct.Struct(">7I")
"""The total length, then program, version, procedure, type, serial number and status."""
# The numbers of libvirt's RPC programs; the second one is "keep" in ASCII.
_REMOTE, _KEEPALIVE = 0x20008086, 0x6B656570
_MOST_MESSAGE: Final = 32 * 1024 * 1024  # libvirt's own VIR_NET_MESSAGE_MAX.
log = structlog.get_logger(__name__)

_OPEN, _CLOSE, _SUPPORTS_FEATURE, _LIST_AUTHENTICATIONS, _REGISTER_CLOSING, _UNREGISTER_CLOSING = 1, 2, 60, 66, 360, 361
_PREPARE, _FINISH = 303, 306
"""The procedures of a move that have named parameters (`...3_PARAMS`)."""
_CALLS: Final = frozenset(
    {_OPEN, _CLOSE, _SUPPORTS_FEATURE, _LIST_AUTHENTICATIONS, _REGISTER_CLOSING, _UNREGISTER_CLOSING, _PREPARE, _FINISH}
)
# VIR_MIGRATE_PARAM_DEST_XML and VIR_MIGRATE_PARAM_PERSIST_XML, under their names in the call.
_XML: Final = ("destination_xml", "persistent_xml")
# The values of virTypedParameterType (int, unsigned, long long, unsigned long long, double, boolean), each with its
# number of bytes in XDR.
_SIZES: Final = {1: 4, 2: 4, 3: 8, 4: 8, 5: 8, 6: 4}
_STRING: Final = 7


class Gate:
    def __init__(self, moved: ArrivingMachine) -> None:
        self._moved = moved

    def watch(self, stream: trio.abc.Stream) -> trio.abc.Stream:
        return _Watched(stream, self._moved)


class _Watched(WrappedStream):
    """Passes on whole messages only, each of them checked. No byte of a message is passed on before all of the message
    is there."""

    def __init__(self, stream: trio.abc.Stream, moved: ArrivingMachine) -> None:
        super().__init__(stream)
        self._moved = moved
        self._received = bytearray()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while (length := self._length()) is None or len(self._received) < length:
            data = await self._stream.receive_some(max_bytes)
            if not data:
                return b""  # A message that was cut off is dropped with the connection.
            self._received += data
        message = bytes(self._received[:length])
        del self._received[:length]
        try:
            require_of_a_move(message, self._moved)
        except Refused as refusal:
            log.error("live.refused", vm_id=str(self._moved.vm_id), why=str(refusal))
            raise
        return message

    def _length(self) -> int | None:
        if len(self._received) < 4:
            return None
        length = int.from_bytes(self._received[:4], "big")
        if not _HEAD.size <= length <= _MOST_MESSAGE:
            raise Refused(f"a message of {length} bytes")
        return length


def require_of_a_move(message: bytes, moved: ArrivingMachine) -> None:
    """Raise `Refused` for a message that does not occur in a migration of this machine."""
    _, program, _, procedure, _, _, _ = _HEAD.unpack_from(message)
    if program == _KEEPALIVE:
        return
    # The message's type is not checked: replies and streams of other procedures are not needed in a move, either.
    if program != _REMOTE or procedure not in _CALLS:
        raise Refused(f"procedure {procedure} of program {program:#x}")
    if procedure == _PREPARE:
        try:
            given = dict(_texts(message[_HEAD.size :]))
            if _XML[0] not in given:
                raise Refused("no definition")
            for name in _XML:
                if name in given:
                    require_own(given[name], moved)
        except (struct.error, UnicodeDecodeError, ElementTree.ParseError) as error:
            raise Refused(f"a preparation that cannot be read ({error})") from error


def _texts(body: bytes) -> Iterator[tuple[str, str]]:
    """Those of the call's typed parameters that are texts, by name."""
    at = 0  # XDR: big-endian words; texts are padded with zeros to a multiple of four bytes.

    def number() -> int:
        nonlocal at
        (value,) = struct.unpack_from(">I", body, at)
        at += 4
        return int(value)

    def text() -> str:
        nonlocal at
        length = number()
        value = body[at : at + length].decode()
        if len(value.encode()) != length:
            raise Refused("a text that ends early")
        at += length + -length % 4
        return value

    for _ in range(number()):
        name, kind = text(), number()
        if kind == _STRING:
            yield name, text()
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            # A parameter of unknown length: the position of the next one is unknown, and libvirt might read it
            # differently.
            raise Refused(f"a parameter of kind {kind}")
