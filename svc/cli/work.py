"""The work that a call starts: a task of the controller, or a job of the panel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class WorkKind(Enum):
    """A kind of work: its noun in messages, the last part of the path of its log, and the field with the number of a
    log line."""

    TASK = "task", "events", "position"
    JOB = "job", "log", "seq"

    def __init__(self, noun: str, log: str, numbered_by: str) -> None:
        self.noun = noun
        self.log = log
        self.numbered_by = numbered_by


@dataclass(frozen=True)
class Work:
    kind: WorkKind
    id: str

    @property
    def path(self) -> str:
        return f"/{self.kind.noun}s/{self.id}"


def started_by(answer: Any) -> Work | None:
    """The work that was started, if any: the answer itself, or the task or job that the answer names."""
    match answer:
        case {"op": _, "progress": _, "id": id_} | {"task": {"id": id_}}:
            return Work(WorkKind.TASK, str(id_))
        case {"task_id": id_} if id_:
            return Work(WorkKind.TASK, str(id_))
        case {"steps": _, "progress": _, "id": id_} | {"handover": {"job_id": id_}}:
            return Work(WorkKind.JOB, str(id_))
    return None


def starts_work(fields: set[str]) -> bool:
    """Whether an answer with these fields has started work."""
    is_work = "progress" in fields and bool(fields & {"op", "steps"})
    return is_work or bool(fields & {"task", "task_id", "handover"})
