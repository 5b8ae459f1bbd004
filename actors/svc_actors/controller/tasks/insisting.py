"""Repeats a step that must not be given up, while the node is online, until the node reports a definite outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from svc_actors.controller.tasks.run import HostRefused, TaskRun
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationResult

_MOST_GIVEN_UP: Final = 4


async def retry_until_final(
    run: TaskRun,
    operation: NodeOperation,
    final: Callable[[HostRefused], bool],
    *,
    step: str,
    span: tuple[int, int] = (0, 100),
) -> OperationResult:
    """Perform the step until it succeeds or its refusal is final. Each attempt has its own id and is made while the
    node is online. Raises `HostRefused`, `LostWithNode`."""
    attempt = 1
    while True:
        await run.until_node_online()
        try:
            return await run.perform(operation, step=step if attempt == 1 else f"{step}-{attempt}", span=span)
        except HostRefused as refusal:
            # A step that is reported as cancelled was cancelled by an earlier attempt, which was given up before the
            # controller restarted. So this is no refusal, and the step is tried again.
            given_up = refusal.failure is FailureCode.CANCELLED and attempt < _MOST_GIVEN_UP
            if not given_up and final(refusal):
                raise
        attempt += 1


def has_node_answer(refusal: HostRefused) -> bool:
    """Whether the node has answered and knows what it has done: only then the refusal is final."""
    return refusal.failure not in (None, FailureCode.INTERRUPTED)
