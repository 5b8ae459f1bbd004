"""Every operation of the controller, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.controller import (
    activity,
    consoles,
    events,
    machine_orders,
    machines,
    nodes,
    settings,
    sign_in,
    tasks,
    tokens,
)
from svc.controller.services import Controller
from svc.registry.registry import Registry

AREAS = (
    sign_in,
    activity,
    events,
    tokens,
    settings,
    nodes,
    machines,
    machine_orders,
    consoles,
    tasks,
)


@cache
def controller_registry() -> Registry[Controller]:
    return Registry(operation for area in AREAS for operation in area.OPERATIONS)
