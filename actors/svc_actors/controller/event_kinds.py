"""The controller's own kinds of the event stream (vm-controller-api.md, Events)."""

from __future__ import annotations

from enum import StrEnum


class ControllerEvent(StrEnum):
    NODE = "node"
    VM = "vm"
    TASK = "task"
    TASK_LOG = "task_log"
    IMAGE = "image"
