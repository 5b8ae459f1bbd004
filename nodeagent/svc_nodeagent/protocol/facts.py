"""The facts of a node operation, which are the same on both ends and are not sent. They alone decide how the operation
is queued, repeated and given up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

GUEST_SHUTDOWN_SECONDS: Final = 90.0
"""How long a guest may take to shut down (vm-controller-api.md, Limits)."""


class Lane(StrEnum):
    """The queue in which an operation waits for its turn on a node. Operations that would delay each other needlessly
    are in different lanes.

    `PATIENCE`: operations that wait for a guest to shut down, a minute or more each, with hardly any work. `FORCE`:
    operations that end such a wait, so nothing may be queued before them. `GUEST_AGENTS`: requests to guests' agents,
    which may not answer, and each of which holds a thread. `NETWORKS`: a change to a security group is many of these at
    once, which must not delay a start. `BACKUPS` read whole disks: they run one at a time, and those that only show
    files come last.
    """

    TRANSFERS = "transfers"
    BACKUPS = "backups"
    CREATIONS = "creations"
    PATIENCE = "patience"
    FORCE = "force"
    GUEST_AGENTS = "guest_agents"
    NETWORKS = "networks"
    ORDERS = "orders"
    QUERIES = "queries"


ResultKind = Literal[
    "done",
    "domain",
    "release",
    "delete",
    "backup",
    "opened_copy",
    "copied_folder",
    "copied_part",
    "snapshot",
    "sent",
    "live",
    "windows",
    "machine",
    "metrics",
    "network",
    "probe",
    "traffic",
    "inventory",
    "preflight",
    "image",
]
"""`kind` of an `OperationResult`, which this module cannot import."""


@dataclass(frozen=True)
class Facts:
    """`answer`: the kind of the operation's result; the controller refuses a result of another kind. `task_seconds`:
    the deadline of a task that consists of this operation; None if there is no such task. `recorded`: the agent
    journals the operation; one that changes nothing durable is not journalled, and is run again when it is requested
    again. `repeatable`: the operation may be run again after an interruption. `yields_to_force_stop`: a forced stop
    supersedes it. `since`: the first version of the protocol that has it. `last_in_lane`: other waiting operations of
    the lane run first, even later ones, until this one has waited for 15 minutes; and after it has run, others run
    first for as long as it took. This is for operations on which nothing depends, and which customers may order as
    often as they like."""

    lane: Lane
    answer: ResultKind
    task_seconds: float | None = None
    recorded: bool = True
    repeatable: bool = True
    yields_to_force_stop: bool = False
    since: int = 0
    last_in_lane: bool = False


def query(answer: ResultKind, *, since: int = 0) -> Facts:
    """The facts of an operation that changes nothing."""
    return Facts(Lane.QUERIES, answer, recorded=False, since=since)
