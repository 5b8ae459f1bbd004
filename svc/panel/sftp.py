"""Access accounts of a site. An account signs in by SFTP, as the site's user and confined to the site's folder, or to a
shell, whose commands run like the site's own programs.

A password is stored as a hash that the SFTP server compares (yescrypt); a generated one is shown once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel import sftp
from svc_actors.panel.sftp import SftpRow
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.secrets import new_secret
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict, unavailable, wrong_field
from svc_common.public_keys import key_fingerprint, parse_public_key
from svc_webhost.crypt import hash_password
from svc_webhost.sftp import AccessKind, SftpError

operations = Operations[Panel]()

LoginName = Annotated[
    str,
    Field(min_length=1, max_length=16, description="Part of the login after the site's account: s1001-NAME."),
    Shape(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", "lowercase letters, digits and dashes, starting with a letter"),
]
LoginFolder = Annotated[
    str,
    Field(
        max_length=512,
        description="Folder in the site's home to confine the login to, such as public/shop; empty for all of it.",
    ),
    Shape(
        r"(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+)*)?",
        "a folder beneath the site's home such as public/shop",
    ),
]
LoginPassword = Annotated[str, Field(min_length=12, max_length=128), Shape(r"[!-~]*", "printable ASCII")]
PublicKey = Annotated[
    str,
    Field(min_length=40, max_length=4096, description="As a line of authorized_keys, without options."),
    Shape(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+(?: [ -~]*)?", "a public key such as ssh-ed25519 AAAA... ada@laptop"),
]
Keys = Annotated[list[PublicKey], Field(max_length=20)]


class SftpKey(Model):
    type: str
    fingerprint: str
    comment: str


class SftpAccount(Model):
    """`kind` shell: the account may run commands, and `folder` is empty. `login` is the user name, for `port` of this
    server. While the site is suspended, nobody can sign in with the account."""

    id: UUID
    site_id: UUID
    name: str
    kind: AccessKind
    login: str
    port: int
    folder: str
    has_password: bool
    keys: list[SftpKey]
    created_at: datetime


class SftpAccountCreated(SftpAccount):
    """`password` is the generated one, if one was generated; it is shown only once."""

    password: str | None = None


class SftpHostKey(Model):
    """A host key of the SFTP server, to compare at the first connection of a client."""

    type: str
    fingerprint: str
    public_key: str


class SftpHostKeys(Model):
    port: int
    keys: list[SftpHostKey]


class SftpCreateRequest(SiteChange):
    """Without a password and without keys a password is generated. `kind` shell is allowed if `shell` of the site is
    true (`site.get`); a shell starts in the site's home and takes no folder."""

    name: LoginName
    kind: AccessKind = AccessKind.SFTP
    folder: LoginFolder = ""
    password: Annotated[LoginPassword | None, Field(repr=False)] = None
    keys: Annotated[Keys, Field(default_factory=list)]


class SftpUpdateRequest(SiteChange):
    """Fields left out stay as they are. Open sessions are ended. `new_password`: generate a password and show it once.
    If the password is null, the account has none, and only keys can be used."""

    account_id: UUID
    password: Annotated[LoginPassword | None, Field(repr=False)] = None
    new_password: bool = False
    keys: Keys | None = None


class SftpDeleteRequest(SiteChange):
    account_id: UUID


@operations.declare(
    "sftp.list",
    "The SFTP and shell accounts of a site",
    Route.get("/sites/{id}/sftp"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("login", "kind", "port", "folder", "has_password", "id"),
)
async def list_accounts(context: Context[Panel], request: SiteRequest) -> list[SftpAccount]:
    site = await site_of(context.services.database, context.principal, request.id)
    return [_shown(context, row) for row in await sftp.read_all(context.services.database, site.id)]


@operations.declare(
    "sftp.host_keys",
    "The host keys that SFTP clients know this server by",
    Route.get("/sftp/host-keys"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def host_keys(context: Context[Panel], request: Empty) -> SftpHostKeys:
    try:
        keys = await context.services.sftp.server.host_keys()
    except SftpError as error:
        raise unavailable(str(error)) from error
    return SftpHostKeys(port=context.services.config.sftp.port, keys=[SftpHostKey(**vars(key)) for key in keys])


@operations.declare(
    "sftp.create",
    "Create an account for SFTP, or a shell, of a site",
    Route.post("/sites/{id}/sftp", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "name"),
    secret=True,
)
async def create(context: Context[Panel], request: SftpCreateRequest) -> SftpAccountCreated:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    if request.kind is AccessKind.SHELL and request.folder:
        raise wrong_field("folder", "a shell cannot be confined to a folder: leave it out")
    keys = [parse_public_key(line, field="keys")[0] for line in request.keys]
    made_up = new_secret() if request.password is None and not keys else None
    password = request.password or made_up
    hashed = None if password is None else await hash_password(password)

    async def work(tx: Transaction) -> SftpRow:
        locked = await locked_site_of(tx, context.principal, site.id)
        _require_there(locked)
        row = await sftp.add(tx, locked, request.name, request.kind, request.folder, hashed, keys)
        details = {"kind": row.kind.value, "folder": row.folder, "password": hashed is not None, "keys": len(keys)}
        await audit.record(tx, context.caller, row.target, details)
        return row

    row = await services.database.transact(work)
    await services.sftp.agree()
    return SftpAccountCreated(**_shown(context, row).model_dump(), password=made_up)


@operations.declare(
    "sftp.update",
    "Change the password or the keys of an access account; its sessions end",
    Route.patch("/sites/{id}/sftp/{account_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    secret=True,
)
async def update(context: Context[Panel], request: SftpUpdateRequest) -> SftpAccountCreated:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    if request.new_password and request.password is not None:
        raise wrong_field("new_password", "give a password or have one generated, not both")
    keys = None if request.keys is None else [parse_public_key(line, field="keys")[0] for line in request.keys]
    made_up = new_secret() if request.new_password else None
    password = request.password or made_up
    hashed = None if password is None else await hash_password(password)

    async def work(tx: Transaction) -> SftpRow:
        await locked_site_of(tx, context.principal, site.id)
        row = await sftp.read(tx, site.id, request.account_id)
        given = "password" in request.model_fields_set or request.new_password
        after = (hashed if given else row.password_hash, row.keys if keys is None else keys)
        if after[0] is None and not after[1]:
            raise conflict(
                f"{row.login} would have neither a password nor a key; nothing was changed.",
                hint="Delete the account if it is no longer needed.",
            )
        await sftp.write_credentials(tx, row, *after)
        await audit.record(tx, context.caller, row.target, {"password": given, "keys": len(after[1])})
        return await sftp.read(tx, site.id, row.id)

    row = await services.database.transact(work)
    await services.sftp.agree(row.login)
    return SftpAccountCreated(**_shown(context, row).model_dump(), password=made_up)


@operations.declare(
    "sftp.delete",
    "Delete an access account; its sessions and the programs started in them are ended",
    Route.delete("/sites/{id}/sftp/{account_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: SftpDeleteRequest) -> None:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)

    async def work(tx: Transaction) -> None:
        await locked_site_of(tx, context.principal, site.id)
        row = await sftp.read(tx, site.id, request.account_id)
        await sftp.remove(tx, row)
        await audit.record(tx, context.caller, row.target)

    await services.database.transact(work)
    await services.sftp.agree()


def _require_there(site: SiteRow) -> None:
    if site.status in (SiteStatus.CREATING, SiteStatus.DELETING, SiteStatus.FAILED):
        raise conflict(f"The site {site.domain} is {site.status.value}; nothing was created.")


def _shown(context: Context[Panel], row: SftpRow) -> SftpAccount:
    keys = [line.split(" ", 2) for line in row.keys]
    return SftpAccount(
        id=row.id,
        site_id=row.site_id,
        name=row.name,
        kind=row.kind,
        login=row.login,
        port=context.services.config.sftp.port,
        folder=row.folder,
        has_password=row.password_hash is not None,
        keys=[
            SftpKey(type=type_, fingerprint=key_fingerprint(encoded), comment=" ".join(comment))
            for type_, encoded, *comment in keys
        ],
        created_at=row.created_at,
    )
