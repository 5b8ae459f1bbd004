"""The controller's own kinds of the event stream (specification, Events)."""

from __future__ import annotations

from enum import StrEnum


class ControllerEvent(StrEnum):
    NODE = "node"
    VM = "vm"
    TASK = "task"
    TASK_LOG = "task_log"
    IMAGE = "image"
