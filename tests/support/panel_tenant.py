"""A customer of the panel with one of everything that a path of the API can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid4

from svc_actors.store import Database
from tests.support.panel import PanelHarness
from tests.support.panel_sites import site_row

OBJECTS: Mapping[str, tuple[str, str]] = {
    "domains": ("site_domains", "SELECT id FROM site_domains WHERE site_id = $1 AND $2::uuid IS NOT NULL"),
    "redirects": (
        "site_redirects",
        """INSERT INTO site_redirects (site_id, path, target, status)
           SELECT $1, '/' || $2::uuid, 'https://target.example/', 301 RETURNING id""",
    ),
    "denied-paths": (
        "site_denied_paths",
        "INSERT INTO site_denied_paths (site_id, pattern) SELECT $1, 'of-' || $2::uuid RETURNING id",
    ),
    "front-controllers": (
        "site_front_controllers",
        """INSERT INTO site_front_controllers (site_id, path, php_file, path_info, serves_files)
           SELECT $1, '/of-' || $2::uuid, '/index.php', false, true RETURNING id""",
    ),
    "protected-paths": (
        "site_protected_paths",
        """WITH path AS (
               INSERT INTO site_protected_paths (site_id, path) SELECT $1, '/of-' || $2::uuid RETURNING id
           ), login AS (
               INSERT INTO site_path_logins (protected_id, login, verifier)
               SELECT id, 'of-' || $2::uuid, '$6$salt$verifier' FROM path
           )
           SELECT id FROM path""",
    ),
    "records": (
        "dns_records",
        """WITH zone AS (
               INSERT INTO dns_zones (name, owner_id) SELECT domain, $2 FROM sites WHERE id = $1 RETURNING name
           )
           INSERT INTO dns_records (zone, name, type, ttl, data)
           SELECT name, 'www.' || name, 'A', 300, '{"type": "A", "address": "203.0.113.9"}' FROM zone RETURNING id""",
    ),
    "upload": (
        "file_uploads",
        """INSERT INTO file_uploads (site_id, path, size, replace)
           SELECT $1, 'upload-of-' || $2::uuid, 3, false RETURNING id""",
    ),
    "imports": (
        "imports",
        """INSERT INTO imports (owner_id, source, name, size, status)
           SELECT $2, 'upload', 'archive of ' || $2::uuid, 3, 'uploading' WHERE $1::uuid IS NOT NULL RETURNING id""",
    ),
    "keys": (
        "backup_repositories",
        """INSERT INTO backup_repositories (site_id, domain, sealed_key)
           SELECT id, domain, '\\x00' FROM sites WHERE id = $1 AND $2::uuid IS NOT NULL RETURNING id""",
    ),
    "backups": (
        "site_backups",
        """INSERT INTO site_backups (repository_id, cause, status, completed_at, job_id)
           SELECT id, 'manual', 'completed', now(), abs(hashtext(id::text))
           FROM backup_repositories WHERE site_id = $1 AND $2::uuid IS NOT NULL RETURNING id""",
    ),
    "targets": (
        "backup_targets",
        """INSERT INTO backup_targets (name, kind, settings)
           SELECT 'of ' || $2::uuid, 'local', '{"kind": "local", "path": "/mnt"}' WHERE $1::uuid IS NOT NULL
           RETURNING id""",
    ),
    "sftp": (
        "sftp_accounts",
        """INSERT INTO sftp_accounts (site_id, name, folder, password_hash, keys)
           SELECT $1, 'ada', '', 'hash of ' || $2::uuid, '{}' RETURNING id""",
    ),
    "jobs": (
        "jobs",
        """WITH job AS (
               INSERT INTO jobs (kind, title, class, status, site_id, owner_id, last_seq, ended_at)
               SELECT 'file.extract', 'Unpack ' || domain, 'sites', 'succeeded', id, $2, 1, now()
               FROM sites WHERE id = $1 RETURNING id
           ), line AS (
               INSERT INTO job_lines (job_id, seq, message) SELECT id, 1, 'a line of ' || $2::uuid FROM job
           )
           SELECT id FROM job""",
    ),
    "databases": (
        "databases",
        """INSERT INTO databases (site_id, engine, name, status)
           SELECT id, 'mariadb', 's' || number || '_shop', 'active' FROM sites WHERE id = $1 AND $2::uuid IS NOT NULL
           RETURNING id""",
    ),
    "exports": (
        "database_exports",
        """INSERT INTO database_exports (database_id, status, size, sha256, expires_at)
           SELECT id, 'ready', 1, repeat('0', 64), now() + interval '1 day' FROM databases
           WHERE site_id = $1 AND $2::uuid IS NOT NULL RETURNING id""",
    ),
    "database-users": (
        "database_users",
        """INSERT INTO database_users (site_id, engine, name, verifier, applied)
           SELECT id, 'mariadb', 's' || number || '_user', 'nothing', 1 FROM sites
           WHERE id = $1 AND $2::uuid IS NOT NULL RETURNING id""",
    ),
    "grants": (
        "databases",
        """WITH granted AS (
               INSERT INTO database_grants (user_id, database_id, access)
               SELECT database_users.id, databases.id, 'full'
               FROM databases JOIN database_users ON database_users.site_id = databases.site_id
               WHERE databases.site_id = $1 AND $2::uuid IS NOT NULL RETURNING database_id
           )
           SELECT database_id FROM granted""",
    ),
    "deploy-keys": (
        "app_deploy_keys",
        """WITH app AS (
               INSERT INTO site_apps (site_id, runtime, interface, entry, folder, health_path)
               SELECT $1, 'python', 'wsgi', 'app:app', '', '/' WHERE $2::uuid IS NOT NULL RETURNING site_id
           )
           INSERT INTO app_deploy_keys (site_id, host, port, host_key, public_key, sealed_private_key)
           SELECT site_id, $2 || '.example', 22, 'a host key', 'a public key', '\\x00' FROM app RETURNING id""",
    ),
    "webhooks": (
        "webhook_endpoints",
        """INSERT INTO webhook_endpoints (url, events, enabled, sealed_secret, last_four)
           SELECT 'https://receiver.example/' || $2::uuid, '{*}', false, '\\x00', 'abcd'
           WHERE $1::uuid IS NOT NULL RETURNING id""",
    ),
    "deliveries": (
        "webhook_deliveries",
        """WITH event AS (
               INSERT INTO webhook_events (id, event, at, body)
               SELECT gen_random_uuid(), 'site.created', now(), '{}' WHERE $1::uuid IS NOT NULL RETURNING id
           )
           INSERT INTO webhook_deliveries (endpoint_id, event_id, status, created_at)
           SELECT e.id, event.id, 'failed', now() FROM webhook_endpoints AS e, event
           WHERE e.url = 'https://receiver.example/' || $2::uuid RETURNING id""",
    ),
    "schedules": (
        "schedules",
        """INSERT INTO schedules (site_id, name, kind, path, cron, time_zone, time_limit_seconds, enabled)
           SELECT $1, 'task of ' || $2::uuid, 'url', '/', '0 4 * * *', 'UTC', 60, false RETURNING id""",
    ),
    "runs": (
        "schedule_runs",
        """INSERT INTO schedule_runs (schedule_id, status, ended_at, output)
           SELECT id, 'succeeded', now(), 'words of ' || $2::uuid FROM schedules WHERE site_id = $1 RETURNING id""",
    ),
    "accounts": ("users", "SELECT id FROM users WHERE $1::uuid IS NOT NULL AND id = $2"),
    "plans": (
        "hosting_plans",
        """WITH plan AS (INSERT INTO hosting_plans (name) VALUES ('plan-of-' || $2::uuid) RETURNING id)
           INSERT INTO hosting_accounts (user_id, plan_id)
           SELECT $2, id FROM plan WHERE $1::uuid IS NOT NULL RETURNING plan_id""",
    ),
    "members": (
        "account_members",
        """WITH person AS (
               INSERT INTO users (email, name, role) VALUES ('of-' || $2::uuid || '@example.com', 'Eve', 'member')
               RETURNING id
           )
           INSERT INTO account_members (account_id, user_id, role, invited_by, accepted_at)
           SELECT $2, id, 'viewer', 'the owner', now() FROM person WHERE $1::uuid IS NOT NULL RETURNING id""",
    ),
    "users": ("users", "SELECT id FROM users WHERE $1::uuid IS NOT NULL AND id = $2"),
    "tokens": (
        "api_tokens",
        """INSERT INTO api_tokens (token_hash, last_four, user_id, name)
           SELECT sha256(gen_random_uuid()::text::bytea), 'abcd', $2, 'of ' || $2::uuid
           WHERE $1::uuid IS NOT NULL RETURNING id""",
    ),
    "alerts": (
        "alerts",
        """INSERT INTO alerts (key, severity, message, told, project_id)
           SELECT 'site:' || $1::uuid, 'warning', 'an alert', 'of ' || $2::uuid, $2 RETURNING id""",
    ),
    "mails": (
        "mails",
        # A mail of the panel and one of the site, with the same id: paths of both call it so.
        """WITH site_mail AS (
               INSERT INTO site_mails (message, site_id, sender, recipient, bytes, deadline_at)
               SELECT gen_random_uuid(), $1, 'a@example.com', 'of-' || $2::uuid || '@example.com', 1,
                      now() + interval '1 day' RETURNING id
           )
           INSERT INTO mails
               (id, message_id, kind, user_id, recipient, subject, perishable, state, deadline_at, ended_at)
           SELECT id, 'm', 'test', $2, 'a@example.com', 'mail of ' || $2::uuid, false, 'failed', now(), now()
           FROM site_mail RETURNING id""",
    ),
}
"""By the word of a path that comes before its id: the table, and what makes or finds the one of a site ($1) and of its
owner ($2)."""


@dataclass(frozen=True)
class Tenant:
    """`ids` are by the word of a path that comes before the id, as `sites` and `records`."""

    id: UUID
    email: str
    domain: str
    ids: Mapping[str, str]

    def id_of(self, word: str) -> str:
        return self.ids.get(word) or nobodys(word)

    @property
    def marks(self) -> frozenset[str]:
        """What nobody else is ever shown."""
        return frozenset({self.email, self.domain, str(self.id), *(id for id in self.ids.values() if len(id) > 10)})


async def tenant(panel: PanelHarness, name: str) -> Tenant:
    """A customer who has one of everything."""
    email, domain = f"{name}@{name}.example", f"{name}.example"
    owner = await panel.person(email)
    site = await site_row(panel.database, owner, domain)
    ids = {"sites": str(site)}
    for word, (_, made) in OBJECTS.items():
        ids[word] = str(await panel.database.fetchval(made, site, owner))
    return Tenant(owner, email, domain, ids)


async def records_of(database: Database, owner: Tenant) -> dict[str, str]:
    """The rows of everything that a tenant has, as text: equal while nobody has changed anything."""
    tables = {"sites": "sites", **{word: table for word, (table, _) in OBJECTS.items()}}
    return {
        word: await database.fetchval(
            f"SELECT string_agg(row::text, ' ' ORDER BY row::text) FROM {table} AS row WHERE id::text = $1",
            owner.ids[word],
        )
        for word, table in tables.items()
    }


def nobodys(word: str) -> str:
    """An id that there is nothing of."""
    return "987654321" if word in ("jobs", "runs") else str(uuid4())
