"""Every operation of the controller, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.controller import alert_webhooks, certificate, holdings, images, overview, projects, settings, setup, tasks
from svc.controller.backups import backups, deleted, files, targets
from svc.controller.machines import (
    consoles,
    creation,
    machines,
    media,
    migration,
    plans,
    processors,
    remaking,
    rescue,
    snapshots,
    ssh_keys,
    volumes,
    windows,
)
from svc.controller.machines import orders as machine_orders
from svc.controller.networking import machine_networking, networks, pool_addresses, pools, security_groups
from svc.controller.nodes import joining, locations, lost, network, nodes, orphans, upgrading
from svc.controller.provisioning import adoption as service_adoption
from svc.controller.provisioning import catalogue as provision_catalogue
from svc.controller.provisioning import changes as service_changes
from svc.controller.provisioning import creation as provisioning
from svc.controller.provisioning import orders as service_orders
from svc.controller.provisioning import services as provisioned_services
from svc.controller.provisioning import sign_in_links
from svc.controller.realm import REALM
from svc.controller.services import Controller
from svc.controller.traffic import traffic
from svc.identity import (
    activity,
    alert_mail,
    alerts,
    audit_check,
    audit_export,
    events,
    mail,
    password_links,
    people,
    second_factor,
    sign_in,
    support,
    tokens,
    users,
)
from svc.registry.registry import Registry

AREAS = (
    setup,
    sign_in,
    second_factor,
    password_links,
    activity,
    audit_check,
    audit_export,
    events,
    tokens,
    ssh_keys,
    projects,
    users,
    people,
    holdings,
    support,
    settings,
    certificate,
    nodes,
    joining,
    upgrading,
    lost,
    network,
    orphans,
    machines,
    creation,
    machine_orders,
    remaking,
    processors,
    snapshots,
    rescue,
    media,
    volumes,
    windows,
    migration,
    machine_networking,
    consoles,
    tasks,
    images,
    plans,
    traffic,
    deleted,
    backups,
    files,
    targets,
    locations,
    networks,
    pools,
    pool_addresses,
    security_groups,
    provision_catalogue,
    provisioning,
    provisioned_services,
    service_orders,
    service_changes,
    service_adoption,
    sign_in_links,
    alerts,
    alert_mail,
    alert_webhooks,
    mail,
    overview,
)


@cache
def controller_registry() -> Registry[Controller]:
    return Registry((operation for area in AREAS for operation in area.operations), REALM)
