"""Every operation of the panel, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.identity import (
    alert_mail,
    alerts,
    mail,
    password_links,
    people,
    second_factor,
    sign_in,
    support,
    tokens,
    users,
)
from svc.panel import (
    account_deletion,
    account_termination,
    accounts,
    apps,
    archives,
    audit,
    backup_configuration,
    backup_drills,
    backup_targets,
    backups,
    billing,
    certificates,
    database_users,
    databases,
    deployments,
    diagnostics,
    dns,
    domains,
    exports,
    files,
    htaccess,
    jobs,
    members,
    php,
    php_extensions,
    plans,
    redirects,
    schedules,
    server_logs,
    settings,
    sftp,
    sign_in_links,
    site_logs,
    sites,
    status,
    uploads,
    webhooks,
    wordpress,
)
from svc.panel.realm import REALM
from svc.panel.services import Panel
from svc.panel.site_rights import declare_rights
from svc.registry.registry import Registry

AREAS = (
    sign_in,
    second_factor,
    password_links,
    tokens,
    users,
    people,
    accounts,
    account_deletion,
    plans,
    billing,
    account_termination,
    sign_in_links,
    members,
    support,
    settings,
    alerts,
    alert_mail,
    mail,
    audit,
    sites,
    diagnostics,
    domains,
    redirects,
    site_logs,
    apps,
    schedules,
    certificates,
    php,
    php_extensions,
    jobs,
    status,
    server_logs,
    files,
    archives,
    uploads,
    sftp,
    webhooks,
    dns,
    backups,
    backup_configuration,
    backup_drills,
    backup_targets,
    databases,
    deployments,
    database_users,
    exports,
    htaccess,
    wordpress,
)


@cache
def panel_registry() -> Registry[Panel]:
    offered = [operation for area in AREAS for operation in area.operations]
    return Registry([*offered, *declare_rights(offered)], REALM)
