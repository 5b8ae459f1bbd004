"""Fetching sites from other hosts by SSH (the panel's specification, Migration): POST /imports/ssh.

If the request contains no host key, the answer shows the host's keys and nothing is started, as `ssh` asks before it
first connects. The fetched archive is an import like an uploaded one (`svc.panel.imports.imports`).
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, SecretStr

from svc.identity.backup_targets import Folder, SshHost
from svc.identity.fields import Email
from svc.panel.host_keys import Fingerprint, ShownKey, confirmed
from svc.panel.imports.imports import owner_of
from svc.panel.imports.models import Import
from svc.panel.services import Panel
from svc.panel.sites.fields import Domain
from svc.panel.sites.sites import usable_name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.imports.foreign_hosts import Remote, Secrets
from svc_common.errors import wrong_field

operations = Operations[Panel]()

_ACCOUNT: Final = Shape(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", "the name of an account")
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\r\n]+-----END [A-Z ]{0,20}PRIVATE KEY-----\s*"
)

DatabaseWord = Annotated[
    str,
    Field(max_length=80),
    Shape(r"[A-Za-z0-9_$][A-Za-z0-9_.$-]*", "the name of a database or of its user"),
]


class SshImportRequest(Request):
    """`host_key` is one of the fingerprints that the answer to a request without it shows; compare it with those of the
    other host's provider. `folders`: the document root first, then others that the site needs. The database is dumped
    on the other host, by `database_user`, or with the account's own settings there."""

    host: SshHost
    user: Annotated[str, Field(max_length=64), _ACCOUNT]
    domain: Domain
    folders: Annotated[list[Folder], Field(min_length=1, max_length=20)]
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    host_key: Fingerprint | None = None
    password: Annotated[SecretStr | None, Field(min_length=1, max_length=256, repr=False)] = None
    private_key: Annotated[SecretStr | None, Field(min_length=1, max_length=16_384, repr=False)] = None
    database: DatabaseWord | None = None
    database_user: DatabaseWord | None = None
    database_password: Annotated[SecretStr | None, Field(min_length=1, max_length=256, repr=False)] = None
    database_host: SshHost | None = None
    owner_email: Email | None = None


class SshImport(Model):
    """`host_keys`: those that the host presents now. No import is started until one is confirmed."""

    host_keys: list[ShownKey]
    begun: Import | None


@operations.declare(
    "import.ssh",
    "Fetch a site from another host by SSH, to be read and planned; without a host key, show the host's keys",
    Route.post("/imports/ssh"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("host", "user", "domain", "folders"),
    target="import",
)
async def import_by_ssh(context: Context[Panel], request: SshImportRequest) -> SshImport:
    services = context.services
    owner = await services.database.transact(lambda tx: owner_of(tx, context, request.owner_email))
    domain = usable_name(context, request.domain).name
    if request.host_key is not None and request.password is None and request.private_key is None:
        raise wrong_field("password", "is required to sign in to the other host, unless private_key is given")
    secrets = _secrets(request)
    keys = await services.foreign_sites.keys(request.host, request.port)
    shown = [ShownKey.of(key) for key in keys]
    if request.host_key is None:
        return SshImport(host_keys=shown, begun=None)
    key = confirmed(keys, request.host_key, request.host)
    remote = Remote(
        host=request.host,
        port=request.port,
        user=request.user,
        host_key=key.text,
        domain=domain,
        folders=tuple(dict.fromkeys(request.folders)),
        database=request.database,
        database_user=request.database_user,
        database_host=request.database_host,
    )
    row = await services.foreign_sites.start(context.caller, owner, remote, secrets)
    return SshImport(host_keys=shown, begun=Import.of(row))


def _secrets(request: SshImportRequest) -> Secrets:
    """The passwords and keys of the request. Raises `invalid` for an invalid private key, and for a password of several
    lines, since programs read a password as one line."""
    given = {
        name: secret.get_secret_value()
        for name in ("password", "private_key", "database_password")
        if (secret := getattr(request, name)) is not None
    }
    for name in ("password", "database_password"):
        if not given.get(name, "").isprintable():
            raise wrong_field(name, "must be one line, without control characters")
    if "private_key" in given and _PRIVATE_KEY.fullmatch(given["private_key"]) is None:
        raise wrong_field("private_key", "must be a private key as ssh-keygen makes it, without a passphrase")
    return Secrets(**given)
