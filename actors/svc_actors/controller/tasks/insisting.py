"""Having a node do what nobody cancels: asked again, while the node is there, until it has given its word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from svc_actors.controller.tasks.run import HostRefused, TaskRun
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationResult

_MOST_GIVEN_UP: Final = 4


async def insist(
    run: TaskRun,
    operation: NodeOperation,
    final: Callable[[HostRefused], bool],
    *,
    step: str,
    span: tuple[int, int] = (0, 100),
) -> OperationResult:
    """Each attempt under an id of its own and while the node is there, until it has done it or its refusal is final.
    Raises `HostRefused`, `LostWithNode`."""
    attempt = 1
    while True:
        await run.until_node_online()
        try:
            return await run.perform(operation, step=step if attempt == 1 else f"{step}-{attempt}", span=span)
        except HostRefused as refusal:
            # What is cancelled is an earlier attempt, which was given up before a restart of ours.
            given_up = refusal.failure is FailureCode.CANCELLED and attempt < _MOST_GIVEN_UP
            if not given_up and final(refusal):
                raise
        attempt += 1


def says_why(refusal: HostRefused) -> bool:
    """The node has answered, and knows what it has done."""
    return refusal.failure not in (None, FailureCode.INTERRUPTED)
