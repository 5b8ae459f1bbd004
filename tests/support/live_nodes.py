"""Nodes between which a guest moves live, as a gateway's answers: where it runs is kept here, and never twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_nodeagent.protocol import (
    DeleteResult,
    DomainResult,
    DomainState,
    FailureCode,
    LivePlace,
    LiveResult,
    NodeOperation,
    OperationResult,
    VmDelete,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
    VmStart,
)
from tests.support.changes import Changes
from tests.support.machine_service import FakeGateway


class At(StrEnum):
    """Points at which a test has something happen."""

    BEGUN = "begun"
    """Both are asked; nothing has gone over."""
    OVER = "over"
    """The guest has left, and is complete and paused at the other node; neither has answered."""
    TOLD = "told"
    """The first word on where it is was given."""
    FINISHING = "finishing"
    """The other node was asked to let it go on."""


@dataclass
class LiveNodes:
    """`points` are called once each, when the move comes to them. `refuses`: the answer of an operation instead."""

    gateway: FakeGateway
    source: UUID
    vm_id: UUID
    points: dict[At, Callable[[], None]] = field(default_factory=dict)
    refuses: dict[str, OperationFailed] = field(default_factory=dict)
    places: dict[UUID, LivePlace] = field(default_factory=dict)
    running: set[UUID] = field(default_factory=set)
    begun: dict[str, trio.Event] = field(default_factory=dict)
    lost: set[UUID] = field(default_factory=set)
    told: Changes = field(default_factory=Changes)
    """Of what they begin and lose."""
    hold: bool = False
    """The guest does not go over before it is cancelled."""

    def __post_init__(self) -> None:
        self.places[self.source] = LivePlace.HERE
        self.running.add(self.source)
        for operation in (VmLiveSend, VmLiveReceive, VmLiveSettle, VmLiveLook, VmLiveFinish, VmDelete, VmStart):
            self.gateway.answers[operation.model_fields["op"].default] = self._answer

    async def _answer(self, _: FakeGateway, node: UUID, operation_id: Any, operation: NodeOperation) -> OperationResult:
        if (refusal := self.refuses.pop(operation.op, None)) is not None:
            await self._end_the_other(operation)
            raise refusal
        match operation:
            case VmLiveReceive() | VmLiveSend() if self.places.get(node) in (LivePlace.ARRIVED, LivePlace.LEFT):
                return self._word(node)  # An agent goes on while the controller is away.
            case VmLiveReceive():
                self.begun["receive"] = arrived = trio.Event()
                self.told.tell()
                self._come_to(At.BEGUN)
                await self._until_over(arrived, operation_id)
                if self.places.get(node) is not LivePlace.ARRIVED:
                    raise cut_short()
                return self._word(node)
            case VmLiveSend():
                await self.told.until(lambda: "receive" in self.begun)
                if self.begun["receive"].is_set():
                    del self.begun["receive"]
                    raise cut_short()
                if self.hold:
                    try:
                        await self.gateway.until_cancelled(operation_id)
                    finally:
                        self.begun.pop("receive").set()
                [target] = set(self.gateway.asked_of) - {node}
                self.places |= {node: LivePlace.LEFT, target: LivePlace.ARRIVED}
                self.running.discard(node)
                self._come_to(At.OVER)
                self.begun.pop("receive").set()
                return self._word(node)
            case VmLiveSettle() | VmLiveLook():
                word = self._word(node)
                self._come_to(At.TOLD)
                return word
            case VmLiveFinish() | VmStart():
                self._come_to(At.FINISHING)
                self._run(node)
                return DomainResult(vm_id=self.vm_id, state=DomainState.RUNNING)
            case VmDelete():
                self.places.pop(node, None)
                self.running.discard(node)
                return DeleteResult(vm_id=self.vm_id, removed_addresses=(), retained_disks=())
            case _:
                raise AssertionError(operation.op)

    async def _end_the_other(self, operation: NodeOperation) -> None:
        """One that refuses ends its streams, which the other notices."""
        match operation:
            case VmLiveSend():
                await self.told.until(lambda: "receive" in self.begun)
                self.begun.pop("receive").set()
            case VmLiveReceive():
                self.begun["receive"] = over = trio.Event()
                over.set()
                self.told.tell()

    def loses(self, node: UUID) -> None:
        """Its QEMU has gone, and with it the guest that had come."""
        self.places.pop(node)
        self.lost.add(node)
        self.told.tell()

    def _run(self, node: UUID) -> None:
        self.running.add(node)
        self.places[node] = LivePlace.HERE
        assert len(self.running) == 1, "it runs twice"

    def _word(self, node: UUID) -> LiveResult:
        place = self.places.get(node, LivePlace.ABSENT)
        if place is LivePlace.HERE:
            state = DomainState.RUNNING if node in self.running else DomainState.STOPPED
        else:
            state = {LivePlace.LEFT: DomainState.STOPPED, LivePlace.ARRIVED: DomainState.PAUSED}.get(
                place, DomainState.ABSENT
            )
        return LiveResult(vm_id=self.vm_id, place=place, state=state)

    def _come_to(self, at: At) -> None:
        self.points.pop(at, lambda: None)()

    async def _until_over(self, arrived: trio.Event, operation_id: Any) -> None:
        async with trio.open_nursery() as nursery:
            failures: list[OperationFailed] = []

            async def cancelled() -> None:
                try:
                    await self.gateway.until_cancelled(operation_id)
                except OperationFailed as failure:
                    failures.append(failure)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cancelled)
            await arrived.wait()
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]


def cut_short(why: str = "The move was cut short.") -> OperationFailed:
    return OperationFailed(FailureCode.INTERRUPTED, why, None)
