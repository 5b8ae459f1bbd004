"""Every operation of the controller, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.controller import (
    activity,
    alerts,
    consoles,
    events,
    images,
    locations,
    machine_networking,
    machine_orders,
    machines,
    networks,
    nodes,
    overview,
    people,
    plan_traffic,
    plans,
    pool_addresses,
    pools,
    projects,
    security_groups,
    settings,
    sign_in,
    ssh_keys,
    support,
    tasks,
    tokens,
    traffic,
    users,
)
from svc.controller.services import Controller
from svc.registry.registry import Registry

AREAS = (
    sign_in,
    activity,
    events,
    tokens,
    ssh_keys,
    projects,
    users,
    people,
    support,
    settings,
    nodes,
    machines,
    machine_orders,
    machine_networking,
    consoles,
    tasks,
    images,
    plans,
    plan_traffic,
    traffic,
    locations,
    networks,
    pools,
    pool_addresses,
    security_groups,
    alerts,
    overview,
)


@cache
def controller_registry() -> Registry[Controller]:
    return Registry(operation for area in AREAS for operation in area.OPERATIONS)
