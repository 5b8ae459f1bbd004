"""The caller's own API tokens: listed, created (the token is shown once), revoked.

Invariants: a token is created in a session or with the scope admin. A token may do nothing that the credential which
created it may not, and it ends when that credential expires or is revoked. Whatever its scopes, a token may do nothing
that its owner's role may not. A token without scopes has its owner's full authority. Only operators may have more than
`MOST_TOKENS` unexpired tokens.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.identity.fields import Name
from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Nullable, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.realm import Realm
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import capacity, forbidden, invalid, not_found, wrong_field

operations = Operations[IdentityServices]()

MOST_TOKENS: Final = 100
"""A limit, because each token is a row and an audit entry. A person needs one for each program."""
_COLUMNS = "id, user_id, name, scopes, last_four, created_at, expires_at, last_used_at"


class ApiToken(Model):
    """`scopes` null is the owner's full authority."""

    id: UUID
    user_id: UUID
    name: str
    scopes: list[str] | None
    last_four: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class ApiTokenCreated(ApiToken):
    """`token` is shown only once."""

    token: str


Scopes = Annotated[
    list[Annotated[str, Field(max_length=50), Shape(r"[a-z][a-z_]*", "the name of a scope")]],
    Field(min_length=1, max_length=50, description="What it may do; everything that its owner may by default."),
]
Days = Annotated[int, Field(ge=0, le=3650, description="Until it expires; 0 is never.")]


class ApiTokenCreateRequest(Request):
    name: Name
    scopes: Scopes | None = None
    days: Days = 365


class TokenList(PageRequest):
    """`user`: whose tokens, for administrators; by default the caller's own."""

    user: UUID | None = None


class TokenRequest(Request):
    id: UUID


@operations.declare(
    "token.list",
    "The caller's own API tokens; an administrator names another person to see theirs",
    Route.get("/tokens"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "scopes", "ends in=last_four", "used=last_used_at", "expires=expires_at", "id"),
)
async def list_tokens(context: Context[IdentityServices], request: TokenList) -> Page[ApiToken]:
    principal = context.principal
    whose = request.user or principal.user_id
    if whose != principal.user_id and principal.role is not Role.ADMINISTRATOR:
        raise forbidden("Only administrators list other people's tokens.", hint="Leave user out.")
    rows, total = await paginate(
        context.services.database,
        select=f"SELECT {_COLUMNS} FROM api_tokens",
        source="api_tokens",
        where=[equals("user_id", whose), contains(request.q, "name")],
        sortable={"created_at": "created_at", "name": "name", "last_used_at": Nullable("last_used_at")},
        default_sort="-created_at",
        request=request,
    )
    return Page[ApiToken].of([ApiToken(**dict(row)) for row in rows], total, request)


@operations.declare(
    "token.create",
    "Create an API token; it is shown once",
    Route.post("/tokens", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
    positional=("name",),
    secret=True,
)
async def create_token(context: Context[IdentityServices], request: ApiTokenCreateRequest) -> ApiTokenCreated:
    owner = context.principal.user_id
    if owner is None:
        raise invalid(
            "Only a person has API tokens.", hint="`svc user token OWNER` creates one that acts as another person."
        )

    async def work(tx: Transaction) -> ApiTokenCreated:
        return await add_token(context, tx, owner, request.name, request.scopes, request.days)

    return await context.services.database.transact(work)


async def add_token(
    context: Context[IdentityServices],
    tx: Transaction,
    owner: UUID,
    name: str,
    scopes: list[str] | None,
    days: int,
) -> ApiTokenCreated:
    """Create a token that acts as `owner`, for `days` (0: never expires); without `scopes` it has the owner's full
    authority. Raises `invalid` for an unknown scope, `forbidden` for one that its creator lacks, `capacity`."""
    realm = context.services.realm
    _check_scopes(realm, scopes, context.principal.scopes)
    if not context.principal.is_operator:
        await _require_allowed(tx, owner)
    token = new_secret(realm.token_prefix)
    row = await tx.fetchone(
        f"""
        INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes, made_by, expires_at)
        VALUES ($1, $2, $3, $4, $5, $7, least(
            CASE WHEN $6 > 0 THEN now() + make_interval(days => $6) END,
            (SELECT expires_at FROM api_tokens WHERE id = $7)
        ))
        RETURNING {_COLUMNS}
        """,
        fingerprint(token),
        token[-4:],
        owner,
        name,
        None if scopes is None else sorted(set(scopes)),
        days,
        context.principal.token_id,
    )
    created = ApiTokenCreated(**dict(row), token=token)
    await audit.record(tx, context.caller, Target("token", created.id, created.name), {"scopes": created.scopes})
    return created


async def _require_allowed(tx: Transaction, owner: UUID) -> None:
    await tx.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", owner)
    has = await tx.fetchval(
        "SELECT count(*) FROM api_tokens WHERE user_id = $1 AND (expires_at IS NULL OR expires_at > now())", owner
    )
    if has >= MOST_TOKENS:
        raise capacity(
            f"This account has {has} API tokens; the limit is {MOST_TOKENS}. No token was created.",
            hint="Revoke one that is no longer used.",
            details={"limit": MOST_TOKENS},
        )


def _check_scopes(realm: Realm, wanted: list[str] | None, own: frozenset[str] | None) -> None:
    """Check the scopes of a new token. `own` are the scopes of the credential that creates it; None is full authority,
    which includes every scope."""
    unknown = [scope for scope in wanted or () if scope not in realm.scopes.names]
    if unknown:
        raise wrong_field("scopes", f"{unknown[0]} is not a scope; scopes are {', '.join(realm.scopes.names)}")
    if own is None:
        return
    excess = sorted(realm.scopes.closed(realm.scopes.names if wanted is None else wanted) - own)
    if excess:
        raise forbidden(f"A token cannot have more scopes than its creator: {', '.join(excess)}.")


@operations.declare(
    "token.delete",
    "Revoke an API token; an administrator anybody's",
    Route.delete("/tokens/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
)
async def revoke_token(context: Context[IdentityServices], request: TokenRequest) -> None:

    async def work(tx: Transaction) -> None:
        name = await tx.fetchval(
            "DELETE FROM api_tokens WHERE id = $1 AND (user_id = $2 OR $3) RETURNING name",
            request.id,
            context.principal.user_id,
            context.principal.role is Role.ADMINISTRATOR,
        )
        if name is None:
            raise not_found("There is no such token.")
        await audit.record(tx, context.caller, Target("token", request.id, name))

    await context.services.database.transact(work)
