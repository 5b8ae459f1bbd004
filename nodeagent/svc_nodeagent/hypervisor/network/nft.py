"""Access to nftables by its JSON (libnftables-json(5)): listings, and transactions of which several are merged into
one.

Every commit, however small, waits for a grace period of the kernel. So commands that arrive during a commit are merged
into the next one. Invariant: if a merged transaction fails, each caller's commands are applied as a transaction of
their own, which fails or succeeds by itself.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.programs import run_program, try_program
from svc_nodeagent.protocol import FailureCode

Json: TypeAlias = "bool | int | str | Sequence[Json] | dict[str, Json] | None"
Commands: TypeAlias = "Sequence[Json]"

TOGETHER = 64
"""The most callers whose commands are merged into one transaction."""

_NETFILTER = 12
_GET_TABLE = 10 << 8 | 1
_REQUEST_DUMP = 0x0001 | 0x0300
_INTERRUPTED = 0x0010
_ERROR, _DONE = 2, 3
_NAME = 1
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_ATTEMPTS = 100


class _PendingCommit:
    """The commands of one caller of `commit`, which wait to be merged into a transaction."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.is_done = False
        self.failure: HostError | OSError | None = None


class Transactions:
    def __init__(self) -> None:
        self._waiting: list[_PendingCommit] = []
        self._turn = trio.Lock()

    async def commit(self, commands: Commands) -> None:
        """Apply these commands: all or none of them. Raises `HostError`, or `OSError` if the host cannot start a
        program. After a cancellation, they may have been applied."""
        pending = _PendingCommit(commands)
        self._waiting.append(pending)
        try:
            async with self._turn:
                if not pending.is_done:
                    # shielded: other callers wait for this program too, and it has its own deadline
                    with trio.CancelScope(shield=True):
                        await self._carry_out()
        finally:
            if pending in self._waiting:
                self._waiting.remove(pending)
        if pending.failure is not None:
            raise pending.failure

    async def _carry_out(self) -> None:
        batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
        try:
            await load([command for pending in batch for command in pending.commands])
        except (HostError, OSError) as error:  # each caller gets the error of its own commands
            if len(batch) == 1:
                batch[0].failure = error
            else:
                await self._one_by_one(batch)
        for pending in batch:
            pending.is_done = True

    async def _one_by_one(self, batch: Iterable[_PendingCommit]) -> None:
        for pending in batch:
            try:
                await load(pending.commands)
            except (HostError, OSError) as error:
                pending.failure = error


async def load(commands: Commands) -> None:
    if commands:
        await run_program("nft", "-j", "-f", "-", stdin=json.dumps({"nftables": commands}).encode())


async def list_tables() -> frozenset[tuple[str, str]]:
    """The (family, name) of every table of the host. Raises `OSError`."""
    await trio.lowlevel.checkpoint()
    return tables()


async def list_table(family: str, name: str) -> list[dict[str, Json]]:
    """The content of a table; empty if there is none."""
    status, output, error = await try_program("nft", "-j", "list", "table", family, name)
    if status != 0 and "No such file or directory" in error:
        return []
    if status != 0:
        output = await run_program("nft", "-j", "list", "table", family, name)
    entries: list[dict[str, Json]] = json.loads(output)["nftables"]
    return entries


async def list_chain(family: str, table: str, name: str) -> list[dict[str, Json]]:
    """One chain with its rules; empty if there is none."""
    status, output, error = await try_program("nft", "-j", "list", "chain", family, table, name)
    if status != 0 and "No such file or directory" in error:
        return []
    if status != 0:
        output = await run_program("nft", "-j", "list", "chain", family, table, name)
    entries: list[dict[str, Json]] = json.loads(output)["nftables"]
    return entries


async def list_all() -> bytes:
    """Everything that the host has, ours and others', as input for `entries`: one listing, which is cheaper than a
    listing of each table."""
    return await run_program("nft", "-j", "list", "ruleset")


def entries(listed: bytes) -> list[dict[str, Json]]:
    """The entries of a listing. For thousands of machines this takes a while, so it must not run in the event loop."""
    found: list[dict[str, Json]] = json.loads(listed)["nftables"]
    return found


def table(family: str, name: str) -> Json:
    return {"add": {"table": {"family": family, "name": name}}}


def no_table(family: str, name: str) -> list[Json]:
    """Commands that remove the table, whether it exists or not. They add it first, since a deletion fails if the table
    does not exist."""
    return [table(family, name), {"delete": {"table": {"family": family, "name": name}}}]


def chain(family: str, table: str, name: str, **hook: Json) -> Json:
    return {"add": {"chain": {"family": family, "table": table, "name": name, **hook}}}


def emptied_chain(family: str, table: str, name: str, **hook: Json) -> list[Json]:
    """Commands that leave the chain empty, and create it if it does not exist."""
    return [
        chain(family, table, name, **hook),
        {"flush": {"chain": {"family": family, "table": table, "name": name}}},
    ]


def no_chain(family: str, table: str, name: str) -> list[Json]:
    """Commands that remove the chain, whether it exists or not."""
    body: Json = {"chain": {"family": family, "table": table, "name": name}}
    return [chain(family, table, name), {"flush": body}, {"delete": body}]


def rule(family: str, table: str, chain: str, *expressions: Json) -> Json:
    return {"add": {"rule": {"family": family, "table": table, "chain": chain, "expr": expressions}}}


def named_set(family: str, table: str, name: str, type: Json, **options: Json) -> Json:
    return {"add": {"set": {"family": family, "table": table, "name": name, "type": type, **options}}}


def verdict_map(family: str, table: str, name: str, type: Json) -> Json:
    return {"add": {"map": {"family": family, "table": table, "name": name, "type": type, "map": "verdict"}}}


def elements(family: str, table: str, name: str, members: Sequence[Json]) -> list[Json]:
    if not members:
        return []
    return [{"add": {"element": {"family": family, "table": table, "name": name, "elem": members}}}]


def no_elements(family: str, table: str, name: str, members: Sequence[Json]) -> list[Json]:
    """Commands that remove the elements, whether they exist or not."""
    if not members:
        return []
    body: Json = {"element": {"family": family, "table": table, "name": name, "elem": members}}
    return [{"add": body}, {"delete": body}]


def match(left: Json, right: Json, *, unlike: bool = False) -> Json:
    return {"match": {"op": "!=" if unlike else "==", "left": left, "right": right}}


def among(left: Json, right: Sequence[Json]) -> Json:
    return {"match": {"op": "in", "left": left, "right": right}}


def meta(key: str) -> Json:
    return {"meta": {"key": key}}


def header(protocol: str, field: str) -> Json:
    return {"payload": {"protocol": protocol, "field": field}}


def prefix(address: str, length: int) -> Json:
    return {"prefix": {"addr": address, "len": length}}


CT_STATE: Json = {"ct": {"key": "state"}}
ACCEPT: Json = {"accept": None}
DROP: Json = {"drop": None}
RETURN: Json = {"return": None}


# The kernel itself is asked for the tables (nfnetlink: linux/netfilter/nf_tables.h). `nft list tables` reads every
# rule, set and object of the host for this, which takes seconds on a host with many machines. Here it is one small
# request, which can be repeated every other second.
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
    """The messages of one answer, each as (type, flags, body)."""
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
