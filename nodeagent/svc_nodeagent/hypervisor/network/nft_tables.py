"""The tables of nftables, requested from the kernel itself (nfnetlink: linux/netfilter/nf_tables.h).

To list the tables, `nft list tables` reads every rule, set and object of the host, which takes seconds on a host with
many machines. Here it is one small request, which can be repeated every other second.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode

_NETFILTER = 12
_GET_TABLE = 10 << 8 | 1
_REQUEST_DUMP = 0x0001 | 0x0300
_INTERRUPTED = 0x0010
_ERROR, _DONE = 2, 3
_NAME = 1
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_ATTEMPTS = 100


def tables() -> frozenset[tuple[str, str]]:
    """The (family, name) of every table. Raises `OSError`; `HostError` if they keep changing."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as kernel:
        kernel.bind((0, 0))
        for attempt in range(_ATTEMPTS):
            kernel.send(struct.pack("=IHHII", 20, _GET_TABLE, _REQUEST_DUMP, attempt, 0) + bytes(4))
            found, is_whole = set(), True
            for kind, flags, body in _messages(kernel):
                is_whole &= not flags & _INTERRUPTED
                if kind == _GET_TABLE - 1:
                    found.add(
                        (_FAMILIES.get(body[0], str(body[0])), _attribute(body[4:], _NAME).rstrip(b"\0").decode())
                    )
            if is_whole:
                return frozenset(found)
    raise HostError(FailureCode.HOST, "The nftables tables kept changing while they were read.")


def _messages(kernel: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """(type, flags, body) to the end of one answer."""
    while True:
        data = kernel.recv(1 << 17)
        while data:
            length, kind, flags = struct.unpack_from("=IHH", data)
            body, data = data[16:length], data[(length + 3) & ~3 :]
            if kind == _ERROR or (kind == _DONE and len(body) >= 4):
                (number,) = struct.unpack_from("=i", body)
                if number < 0:
                    raise OSError(-number, os.strerror(-number))
            yield kind, flags, body
            if kind in (_ERROR, _DONE):
                return


def _attribute(attributes: bytes, wanted: int) -> bytes:
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind & 0x3FFF == wanted:
            return attributes[4:length]
        attributes = attributes[(length + 3) & ~3 :]
    return b""
