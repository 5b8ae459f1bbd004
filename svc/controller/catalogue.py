"""Every operation of the controller, area by area: the closed registry that page, API and command line all go through."""

from __future__ import annotations

from functools import cache

from svc.controller import consoles
from svc.controller.services import Controller
from svc.registry.registry import Registry

AREAS = (consoles,)


@cache
def controller_registry() -> Registry[Controller]:
    return Registry(operation for area in AREAS for operation in area.OPERATIONS)
