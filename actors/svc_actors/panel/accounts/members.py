"""Members of customers' accounts: the only writer of `account_members` and `member_invitations`.

Invariants: a person is a member of an account, or of one of its sites, once; nobody is a member of their own account; a
membership ends with its account, its person or its site, and when another customer gets the site. What a role permits
is defined elsewhere.

Why: docs/decisions/0056-accounts-and-members.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from svc_actors.store import Target, Transaction
from svc_common.errors import conflict, rate_limited

MOST_MEMBERS: Final = 200
"""The most members of an account, including invitations that are not accepted yet."""
INVITATIONS_OF_ACCOUNT: Final = 20
INVITATIONS_TO_ONE: Final = 3
COUNTED_FOR: Final = timedelta(hours=1)


def member_target(member_id: UUID, email: str, account_id: UUID) -> Target:
    return Target("member", member_id, email, account_id)


async def invite_member(
    tx: Transaction, account_id: UUID, user_id: UUID, site_id: UUID | None, role: str, invited_by: str
) -> UUID:
    """The caller holds the lock of the account's row. A person who has not accepted yet is invited anew, with this
    role. Raises `conflict` for a member, and if the account has too many members."""
    found = await tx.fetchrow(
        """SELECT id, accepted_at FROM account_members
           WHERE account_id = $1 AND user_id = $2 AND site_id IS NOT DISTINCT FROM $3 FOR UPDATE""",
        account_id,
        user_id,
        site_id,
    )
    if found is not None and found["accepted_at"] is not None:
        raise conflict("They are a member already; nothing was changed.", hint="Change the role of the member instead.")
    if found is not None:
        await tx.execute(
            "UPDATE account_members SET role = $2, invited_by = $3 WHERE id = $1", found["id"], role, invited_by
        )
        member_id: UUID = found["id"]
        return member_id
    if await tx.fetchval("SELECT count(*) FROM account_members WHERE account_id = $1", account_id) >= MOST_MEMBERS:
        raise conflict(f"An account has at most {MOST_MEMBERS} members.", hint="Remove one first.")
    added: UUID = await tx.fetchval(
        """INSERT INTO account_members (account_id, user_id, site_id, role, invited_by)
           VALUES ($1, $2, $3, $4, $5) RETURNING id""",
        account_id,
        user_id,
        site_id,
        role,
        invited_by,
    )
    return added


async def count_invitation(tx: Transaction, account_id: UUID, recipient: str) -> None:
    """Count a mail that is about to go to `recipient`. Raises `rate_limited`."""
    await tx.execute("DELETE FROM member_invitations WHERE sent_at < now() - $1::interval", COUNTED_FOR)
    sent = await tx.fetchone(
        """SELECT count(*) FILTER (WHERE account_id = $1) AS by_account,
                  count(*) FILTER (WHERE recipient = $2) AS to_one
           FROM member_invitations WHERE account_id = $1 OR recipient = $2""",
        account_id,
        recipient,
    )
    if sent["by_account"] >= INVITATIONS_OF_ACCOUNT or sent["to_one"] >= INVITATIONS_TO_ONE:
        raise rate_limited(
            "Too many invitations were sent; this one was not.",
            hint="Try again in an hour.",
            details={"retry_after": int(COUNTED_FOR.total_seconds())},
        )
    await tx.execute("INSERT INTO member_invitations (account_id, recipient) VALUES ($1, $2)", account_id, recipient)


async def set_role(tx: Transaction, member_id: UUID, role: str) -> None:
    await tx.execute("UPDATE account_members SET role = $2 WHERE id = $1", member_id, role)


async def accept(tx: Transaction, member_id: UUID) -> None:
    await tx.execute("UPDATE account_members SET accepted_at = coalesce(accepted_at, now()) WHERE id = $1", member_id)


async def remove_member(tx: Transaction, member_id: UUID) -> None:
    await tx.execute("DELETE FROM account_members WHERE id = $1", member_id)


async def end_of_site(tx: Transaction, site_id: UUID) -> None:
    """Another customer gets the site: remove its members."""
    await tx.execute("DELETE FROM account_members WHERE site_id = $1", site_id)
