"""What both ends know of a node operation besides its fields. Each operation carries its facts; they alone decide how
it is queued, repeated and given up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

GUEST_SHUTDOWN_SECONDS: Final = 90.0
"""How long a guest may take to shut down (vm-controller-api.md, Limits)."""


class Lane(StrEnum):
    """The queue in which an operation waits for its turn on a node, so that nothing waits behind what it should not.

    `PATIENCE` is what waits for a guest to go off: a minute or more each, and hardly any work. `FORCE` is what ends
    such a wait, so nothing may be in front of it. `GUEST_AGENTS` may not answer, and each holds a host thread. A change
    to a security group is many `NETWORKS` at once, which keep nobody's start waiting. `BACKUPS` read whole disks: one
    at a time, and those that only show files last.
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
    """`answer`: the kind of its result; the controller refuses every other. `task_seconds`: when a task that consists
    of this operation ends without an outcome; None if no task does. `recorded`: the agent journals it; an operation
    that changes nothing durable is not journalled, and is simply run again. `repeatable`: it may be run again after an
    interruption. `yields_to_force_stop`: a forced stop supersedes it. `since`: the first version of the protocol that
    has it. `last_in_lane`: other waiting operations of its lane go first, even later ones, until it has waited for 15
    minutes, and after one of it for as long as that took: nothing depends on it, and customers may order it as often as
    they like."""

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
