"""No table and no column of a site is forgotten in its backups: each is in the configuration or left out on purpose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pytest
from pydantic import BaseModel

from svc_actors.panel.backups import configuration
from svc_actors.store import Database

LEFT_OUT: Final[Mapping[str, str]] = {
    "account_members": "who may work in a site is decided by its owner now, not by a backup",
    "app_deploy_keys": "a key that was withdrawn must not open a foreign repository again",
    "app_deployments": "their folders are files of the site; they are records of jobs",
    "backup_copies": "where backups are",
    "backup_data_checks": "where backups are",
    "backup_deletions": "where backups are",
    "backup_repositories": "where backups are",
    "database_exports": "files that expire within days",
    "database_grants": "users of databases stay as they are; their names have the number of their site",
    "database_users": "users of databases stay as they are; their names have the number of their site",
    "databases": "their content is dumped, and restored as the part databases",
    "file_uploads": "unfinished, and expire",
    "import_sites": "which import created it",
    "jobs": "what was done, and is not undone by a restoration",
    "migration_reports": "a report about the old host at one time",
    "recovery_sites": "what a recovery of this server has done so far",
    "schedule_runs": "what was done, and is not undone by a restoration",
    "sftp_accounts": "access that the customer has withdrawn must not come back",
    "site_backups": "where backups are",
    "site_disk_use": "measured",
    "site_handovers": "work under way",
    "site_mail_settings": "limits, which administrators set, stay as they are",
    "site_mails": "what was sent, and is not undone by a restoration",
    "site_traffic": "measured",
    "site_traffic_counted": "measured",
    "stagings": "the relation of two sites: each has backups of its own",
    "wordpress_sites": "how WordPress was installed; its settings are in its files and database",
}
"""Tables of a site that its backups leave out, and why."""

STORED: Final[Mapping[str, tuple[type[BaseModel], frozenset[str]]]] = {
    "sites": (
        configuration.StoredSite,
        frozenset(
            {
                *("number", "owner_id", "status", "reason", "suspended_by", "staging_of", "wanted", "served"),
                # Limits, which administrators set, stay as they are.
                *("cpu_percent", "memory_mib", "processes", "disk_mib", "shell"),
                # Where a proxy leads is decided, and its name looked up, when it is set.
                *("proxy_target", "proxy_addresses"),
            }
        ),
    ),
    "site_domains": (configuration.StoredName, frozenset({"registrable"})),
    "site_redirects": (configuration.StoredRedirect, frozenset()),
    "site_denied_paths": (configuration.StoredDenied, frozenset()),
    "site_front_controllers": (configuration.StoredFrontController, frozenset()),
    "site_apps": (
        configuration.StoredApp,
        frozenset({"last_release", "wanted_release", "live_release", "problem", "deployment", "live_deployment"}),
    ),
    "schedules": (configuration.StoredTask, frozenset({"next_run_at"})),
    "dns_records": (configuration.StoredRecord, frozenset({"type", "managed"})),
}
"""The model of each table's rows in a backup, and the columns that it leaves out besides ids and times of creation."""

# What belongs to a job is not followed: it says what the job did.
OF_A_SITE: Final = """
WITH RECURSIVE of_site AS (
    SELECT table_name::text AS name FROM information_schema.columns
    WHERE table_schema = 'public' AND column_name = 'site_id'
    UNION
    SELECT conrelid::regclass::text FROM pg_constraint JOIN of_site ON confrelid::regclass::text = name
    WHERE contype = 'f' AND name <> 'jobs'
)
SELECT name FROM of_site WHERE name <> 'sites'"""


async def test_each_table_of_a_site_is_in_its_backups_or_left_out_on_purpose(panel_database: Database) -> None:
    tables = {row["name"] for row in await panel_database.fetch(OF_A_SITE)}

    stored = {table for sql in configuration.READS for table in re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", sql)}

    assert tables - stored - LEFT_OUT.keys() == set(), "in no backup: add them to the configuration or to LEFT_OUT"
    assert LEFT_OUT.keys() - tables == set(), "there are no such tables"
    assert stored & LEFT_OUT.keys() == set()


@pytest.mark.parametrize("table", STORED)
async def test_each_column_of_a_stored_table_is_in_its_model_or_left_out_on_purpose(
    panel_database: Database, table: str
) -> None:
    model, left_out = STORED[table]
    rows = await panel_database.fetch("SELECT column_name FROM information_schema.columns WHERE table_name = $1", table)

    columns = {row["column_name"] for row in rows} - {"id", "site_id", "created_at"}

    assert columns == model.model_fields.keys() | left_out
