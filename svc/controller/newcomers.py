"""What a new person starts with: a project, since machines, groups and bills belong to one."""

from __future__ import annotations

from uuid import UUID

from svc.registry.principal import Role
from svc_actors.store import Transaction


async def give_project(tx: Transaction, user_id: UUID, email: str, role: Role) -> None:
    """Give a customer a project of their own, named after their address; administrators and staff see every project
    anyway."""
    if role is not Role.CUSTOMER:
        return
    # An operator may have given this name to a project already; then the new project gets a number appended.
    await tx.execute(
        """
        WITH made AS (
            INSERT INTO projects (name)
            SELECT name FROM (
                SELECT CASE number WHEN 1 THEN $1::text ELSE $1::text || ' ' || number END AS name, number
                FROM generate_series(1, 1 + (SELECT count(*) FROM projects WHERE starts_with(name, $1::text)))
                     AS number
            ) candidate
            WHERE NOT EXISTS (SELECT FROM projects WHERE projects.name = candidate.name)
            ORDER BY number LIMIT 1
            RETURNING id
        )
        INSERT INTO project_members (project_id, user_id) SELECT id, $2 FROM made
        """,
        email,
        user_id,
    )
