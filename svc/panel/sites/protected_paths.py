"""Paths of a site that need a password.

A password is stored as a hash that the web server compares; a generated one is shown once.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of, visible_row
from svc.panel.sites.sites import ask_change
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.sites.protected_paths import (
    Protection,
    protect,
    protection_of,
    protections_of,
    remove_login,
    unprotect,
    write_login,
)
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.site import Changed, ChangedTo
from svc_actors.secrets import new_secret
from svc_actors.store import Target, Transaction
from svc_common.errors import not_found
from svc_webhost.crypt import hash_random_password, hash_visitors_password

operations = Operations[Panel](about="Paths of sites that ask for a password.")

ProtectedPath = Annotated[
    str,
    Field(max_length=255, description="A folder or a file as visitors ask for it; / is the whole site."),
    Shape(r"/(?:[\w.~!&()+,=:@-]+(?:/[\w.~!&()+,=:@-]+)*)?", "a path such as /members, without a slash at its end"),
]

PathLogin = Annotated[
    str,
    Field(min_length=1, max_length=64, description="The name that visitors sign in with."),
    Shape(r"[A-Za-z0-9._@-]+", "letters, digits and . _ @ -"),
]

PathPassword = Annotated[
    str,
    Field(min_length=12, max_length=128, description="If left out, one is generated and shown once."),
    Shape(r"[!-~]*", "printable ASCII without blanks"),
]


class ProtectedPathModel(Model):
    """`logins`: the user names that are accepted, each with its own password."""

    id: UUID
    site_id: UUID
    path: str
    logins: list[str]


class ProtectedPathOpened(ProtectedPathModel):
    """`password` is the generated one, if one was generated; it is shown only once."""

    password: str | None = None


class ProtectedPathCreateRequest(SiteChange):
    """Protects the path and everything below it. The site's programs get the login as REMOTE_USER."""

    path: ProtectedPath
    login: PathLogin
    password: Annotated[PathPassword | None, Field(repr=False)] = None


class ProtectedPathRequest(Request):
    """A change to one protected path."""

    id: UUID
    site_id: Annotated[UUID | None, Field(description="Ignored: the protected path's own site is used.")] = None


class PathLoginRequest(ProtectedPathRequest):
    """Adds a login, or sets the password of an existing one."""

    login: PathLogin
    password: Annotated[PathPassword | None, Field(repr=False)] = None


class PathLoginRemoval(ProtectedPathRequest):
    login: PathLogin


@operations.declare(
    "protected_path.list",
    "The protected paths of a site",
    Route.get("/sites/{id}/protected-paths"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("path", "logins", "id"),
)
async def list_protected_paths(context: Context[Panel], request: SiteRequest) -> list[ProtectedPathModel]:
    site = await site_of(context.services.database, context.principal, request.id)
    found = await protections_of(context.services.database, site.id)
    return [ProtectedPathModel(**_shown(each, site.id)) for each in found]


@operations.declare(
    "protected_path.create",
    "Protect a path of a site with a password",
    Route.post("/sites/{id}/protected-paths", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "login"),
    secret=True,
)
async def create_protected_path(context: Context[Panel], request: ProtectedPathCreateRequest) -> ProtectedPathOpened:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    made_up, verifier = await _verifier(request.password)

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[UUID]:
        protected_id = await protect(tx, locked, request.path, {request.login: verifier})
        target = _target(protected_id, request.path, locked)
        return ChangedTo(target, {"site": locked.domain, "login": request.login}, result=protected_id)

    changed = await ask_change(context, site.id, change)
    protection = await protection_of(database, site.id, changed.result)
    return ProtectedPathOpened(**_shown(protection, site.id), password=made_up)


@operations.declare(
    "protected_path.set_login",
    "Add a login to a protected path, or change its password",
    Route.post("/protected-paths/{id}/logins"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "login"),
    secret=True,
)
async def set_login(context: Context[Panel], request: PathLoginRequest) -> ProtectedPathOpened:
    site_id = await _site_of(context, request.id)
    made_up, verifier = await _verifier(request.password)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        protection = await protection_of(tx, locked.id, request.id)
        await write_login(tx, protection.id, request.login, verifier)
        return _changed(protection, locked, request.login)

    await ask_change(context, site_id, change)
    found = await protection_of(context.services.database, site_id, request.id)
    return ProtectedPathOpened(**_shown(found, site_id), password=made_up)


@operations.declare(
    "protected_path.remove_login",
    "Remove a login from a protected path",
    Route.delete("/protected-paths/{id}/logins"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "login"),
)
async def delete_login(context: Context[Panel], request: PathLoginRemoval) -> None:
    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        protection = await protection_of(tx, locked.id, request.id)
        await remove_login(tx, protection, request.login)
        return _changed(protection, locked, request.login)

    await ask_change(context, await _site_of(context, request.id), change)


@operations.declare(
    "protected_path.delete",
    "Remove password protection from a path",
    Route.delete("/protected-paths/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_protected_path(context: Context[Panel], request: ProtectedPathRequest) -> None:
    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        protection = await protection_of(tx, locked.id, request.id)
        await unprotect(tx, protection)
        return Changed(_target(protection.id, protection.path, locked), {"site": locked.domain})

    await ask_change(context, await _site_of(context, request.id), change)


async def _site_of(context: Context[Panel], protected_id: UUID) -> UUID:
    """The site of the protected path, if the caller may use the current operation on it."""
    select = "SELECT site_id FROM site_protected_paths AS protected JOIN sites ON sites.id = site_id"
    where, absent = Condition("protected.id = $1", (protected_id,)), not_found("There is no such protected path.")
    row = await visible_row(context.services.database, context.principal, select, where, absent)
    site_id: UUID = row["site_id"]
    return site_id


async def _verifier(password: str | None) -> tuple[str | None, str]:
    """The password that was generated, None if one was given; and the password's hash, which the web server checks
    logins against."""
    if password is not None:
        return None, await hash_visitors_password(password)
    made_up = new_secret()
    return made_up, hash_random_password(made_up)


def _shown(protection: Protection, site_id: UUID) -> dict[str, object]:
    return {"id": protection.id, "site_id": site_id, "path": protection.path, "logins": list(protection.logins)}


def _changed(protection: Protection, site: SiteRow, login: str) -> Changed:
    return Changed(_target(protection.id, protection.path, site), {"site": site.domain, "login": login})


def _target(protected_id: UUID, path: str, site: SiteRow) -> Target:
    return Target("protected_path", protected_id, path, site.owner_id)
