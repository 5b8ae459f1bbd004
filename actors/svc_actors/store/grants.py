"""Rights of the service's database role: it may read and write rows, nothing else.

The role owns nothing, so it can neither change tables nor disable their triggers. In the audit trail it may only add
and read rows. The rights are granted again after every migration, in one transaction, so that a new table always has
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from svc_actors.store.database import Database
from svc_actors.store.embedded import DatabaseUrls
from svc_actors.store.migrate import CONTROLLER_SCHEMA, Component, known_migrations, migrate
from svc_actors.store.transactions import Transaction

log = structlog.get_logger(__name__)

_APPEND_ONLY = ("audit", "audit_exports", "audit_seals")
_READ_ONLY = ("schema_migration",)


async def prepare_schema(
    urls: DatabaseUrls, components: Sequence[Component] = CONTROLLER_SCHEMA, *, returned: bool = False
) -> None:
    """Migrate the service's components as the owner, and grant the service's role its rights. `returned`: the service
    was rolled back to this release (`migrate`)."""
    async with Database.open(urls.service, size=1) as service:
        role: str = await service.fetchval("SELECT session_user")
    async with Database.open(urls.owner, size=1, application_name="svc migration") as owner:
        await migrate(owner, known_migrations(components), returned=returned)
        if role == await owner.fetchval("SELECT session_user"):
            log.warning(
                "database.role_owns_audit",
                role=role,
                remedy="name an owner in SVC_DATABASE_OWNER_URL (docs/database.md)",
            )
        else:
            await grant_service(owner, role)


async def grant_service(owner: Database, role: str) -> None:
    async def grant(tx: Transaction) -> None:
        name = await tx.fetchval("SELECT quote_ident($1)", role)
        await tx.execute(
            f"""
            GRANT USAGE ON SCHEMA public TO {name};
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name};
            GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name};
            REVOKE UPDATE, DELETE, TRUNCATE ON {", ".join(_APPEND_ONLY)} FROM {name};
            REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {", ".join(_READ_ONLY)} FROM {name};
            GRANT EXECUTE ON FUNCTION remove_exported_audit(interval, bigint, bigint) TO {name};
            """
        )

    await owner.transact(grant)
