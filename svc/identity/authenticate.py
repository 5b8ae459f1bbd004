"""From a credential to a principal, in one query.

Invariants: a credential that is unknown, expired or revoked, or whose person is suspended, is `unauthenticated`; the 30
minutes of a support session are checked here, on each request, and its operator must still be an active administrator;
nothing is cached between requests, so a revoked credential stops working at once.

Why: docs/decisions/0008-credentials-and-sessions.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from svc.identity.sessions import IDLE, end
from svc.registry.principal import Principal, Role
from svc.registry.realm import Realm
from svc_actors.secrets import fingerprint
from svc_actors.store import Database
from svc_common.errors import unauthenticated

_TOUCH_EVERY: Final = timedelta(minutes=1)

_OF_BEARER = """
SELECT t.id, t.user_id, t.scopes, u.email, u.role,
       t.last_used_at IS NULL OR t.last_used_at < now() - $2::interval AS touch
FROM api_tokens AS t JOIN users AS u ON u.id = t.user_id
WHERE t.token_hash = $1 AND (t.expires_at IS NULL OR t.expires_at > now()) AND u.suspended_at IS NULL
"""

_OF_COOKIE = """
SELECT s.id, s.user_id, s.impersonation_id, u.email, u.role, i.operator_id, o.email AS operator_email,
       s.seen_at < now() - $2::interval AS touch,
       s.expires_at <= now() OR s.seen_at <= now() - $3::interval OR (i.id IS NULL AND u.suspended_at IS NOT NULL)
           OR i.ended_at IS NOT NULL OR i.expires_at <= now()
           OR o.suspended_at IS NOT NULL OR o.role <> 'administrator' OR (i.id IS NOT NULL AND u.role <> 'customer')
           AS ended
FROM sessions AS s
JOIN users AS u ON u.id = s.user_id
LEFT JOIN impersonations AS i ON i.id = s.impersonation_id
LEFT JOIN users AS o ON o.id = i.operator_id
WHERE s.token_hash = $1
"""


class Authentication:
    """The authenticator of the HTTP side; see `svc_http.credentials.Authenticator`."""

    def __init__(self, database: Database, realm: Realm) -> None:
        self._database = database
        self._realm = realm
        self._closed: dict[tuple[str, ...], frozenset[str]] = {}

    async def by_token(self, token: str) -> Principal:
        row = None
        if token.startswith(self._realm.token_prefix):
            row = await self._database.fetchrow(_OF_BEARER, fingerprint(token), _TOUCH_EVERY)
        if row is None:
            raise unauthenticated("This token is unknown, expired or revoked, or its owner is suspended.")
        if row["touch"]:
            await self._database.execute("UPDATE api_tokens SET last_used_at = now() WHERE id = $1", row["id"])
        return Principal(
            user_id=row["user_id"],
            email=row["email"],
            role=Role(row["role"]),
            scopes=self._scopes(row["scopes"]),
            token_id=row["id"],
        )

    async def by_session(self, cookie: str) -> Principal:
        row = await self._database.fetchrow(_OF_COOKIE, fingerprint(cookie), _TOUCH_EVERY, IDLE)
        if row is None:
            raise unauthenticated("This session has ended: sign in again.")
        if row["ended"]:
            async with self._database.transaction() as tx:
                await end(tx, row["id"])
            what = "support session" if row["impersonation_id"] is not None else "session"
            raise unauthenticated(f"This {what} has ended: sign in again.")
        if row["touch"]:
            await self._database.execute("UPDATE sessions SET seen_at = now() WHERE id = $1", row["id"])
        return Principal(
            user_id=row["user_id"],
            email=row["email"],
            role=Role(row["role"]),
            scopes=None,
            session_id=row["id"],
            impersonation_id=row["impersonation_id"],
            impersonator_id=row["operator_id"],
            impersonator_email=row["operator_email"],
        )

    def _scopes(self, stored: list[str] | None) -> frozenset[str] | None:
        if stored is None:
            return None
        names = tuple(stored)
        known = self._closed.get(names)
        if known is None:
            known = self._closed[names] = self._realm.scopes.closed(names)
        return known
