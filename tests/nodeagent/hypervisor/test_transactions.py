"""Transactions that are merged: each part is carried out or fails, whatever becomes of those it was merged with."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.network import nft
from svc_nodeagent.hypervisor.network.nft import Transactions
from svc_nodeagent.protocol import FailureCode

PARTS = [f"machine {number}" for number in range(5)]


class Kernel:
    """Takes what nft is given; `refuses` says of a transaction why not."""

    def __init__(self, *refusals: Exception) -> None:
        self.carried_out: list[str] = []
        self.transactions = 0
        self._refusals = list(refusals)

    async def run(self, *_: str, stdin: bytes, **__: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        self.transactions += 1
        names = json.loads(stdin)["nftables"]
        if len(names) > 1 and self._refusals:
            raise self._refusals.pop()
        self.carried_out += names
        return b""


@pytest.mark.parametrize(
    "refusal",
    [BlockingIOError(11, "no process could be started"), HostError(FailureCode.HOST, "nft failed")],
    ids=["no program", "refused"],
)
async def test_what_was_merged_and_failed_is_carried_out_one_by_one(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    kernel, transactions = Kernel(refusal), Transactions()
    monkeypatch.setattr(nft, "run_program", kernel.run)
    async with trio.open_nursery() as nursery:
        for part in PARTS:
            nursery.start_soon(transactions.commit, [part])
    assert sorted(kernel.carried_out) == PARTS


async def test_a_host_that_starts_no_program_fails_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    transactions = Transactions()

    async def no_program(*_: str, **__: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        raise BlockingIOError(11, "no process could be started")

    async def commit(part: str) -> None:
        try:
            await transactions.commit([part])
        except OSError:
            failed.append(part)

    monkeypatch.setattr(nft, "run_program", no_program)
    async with trio.open_nursery() as nursery:
        for part in PARTS:
            nursery.start_soon(commit, part)
    assert sorted(failed) == PARTS
