"""Every operation of the panel, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.identity import sign_in
from svc.panel import sites
from svc.panel.realm import REALM
from svc.panel.services import Panel
from svc.registry.registry import Registry

AREAS = (sign_in, sites)


@cache
def panel_registry() -> Registry[Panel]:
    return Registry((operation for area in AREAS for operation in area.operations), REALM)
