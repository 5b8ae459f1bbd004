"""Every operation of the panel, area by area: the closed registry behind page, API and command line."""

from __future__ import annotations

from functools import cache

from svc.identity import (
    alert_mail,
    alerts,
    audit_check,
    audit_export,
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
    audit,
    diagnostics,
    health,
    htaccess,
    jobs,
    licensing,
    recovery,
    releases,
    server_logs,
    settings,
    sftp,
    staging,
    status,
    updates,
    webhooks,
    wordpress,
)
from svc.panel.accounts import accounts, billing, members, plans, sign_in_links
from svc.panel.accounts import deletion as account_deletion
from svc.panel.accounts import termination as account_termination
from svc.panel.apps import apps, deploy_keys, deployments
from svc.panel.backups import backups, data_checks
from svc.panel.backups import configuration as backup_configuration
from svc.panel.backups import drills as backup_drills
from svc.panel.backups import targets as backup_targets
from svc.panel.certificates import certificates
from svc.panel.databases import databases, exports
from svc.panel.databases import users as database_users
from svc.panel.dns import zones as dns
from svc.panel.files import archives, files, uploads
from svc.panel.imports import imports
from svc.panel.imports import ssh as import_ssh
from svc.panel.imports import verification as migration
from svc.panel.mail import site_mail
from svc.panel.realm import REALM
from svc.panel.schedules import schedules
from svc.panel.services import Panel
from svc.panel.sites import (
    denied_paths,
    domains,
    front_controllers,
    php,
    php_extensions,
    protected_paths,
    redirects,
    sites,
)
from svc.panel.sites import logs as site_logs
from svc.panel.sites.rights import declare_rights
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
    audit_check,
    audit_export,
    sites,
    diagnostics,
    domains,
    redirects,
    denied_paths,
    protected_paths,
    front_controllers,
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
    data_checks,
    backup_drills,
    backup_targets,
    recovery,
    databases,
    deploy_keys,
    deployments,
    database_users,
    exports,
    health,
    licensing,
    updates,
    releases,
    htaccess,
    import_ssh,
    imports,
    migration,
    site_mail,
    wordpress,
    staging,
)


@cache
def panel_registry() -> Registry[Panel]:
    offered = [operation for area in AREAS for operation in area.operations]
    return Registry([*offered, *declare_rights(offered)], REALM)
