"""Deploy keys: how deployments of an application read private git repositories, by SSH.

If the request does not contain the host's key, the answer shows the host's keys and nothing is created, as `ssh` asks
before it first connects. Once a key pair was created, the owner registers its public half with the repository's host.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.identity.backup_targets import SshHost
from svc.panel.host_keys import Fingerprint, ShownKey, confirmed
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.apps.deploy_keys import DeployKey, delete_deploy_key, deploy_keys_of, write_deploy_key
from svc_actors.panel.apps.records import app_of
from svc_actors.panel.imports.foreign_hosts import HostKey
from svc_actors.store import Transaction, audit
from svc_common.errors import not_found
from svc_webhost.apps.repository import SSH_PORT

operations = Operations[Panel]()


class DeployKeyModel(Model):
    """The key for all repositories of one host. Register `public_key` there as a read-only key. `host_key` is the
    fingerprint of the host's own key; a host with another key is refused."""

    id: UUID
    host: str
    port: int
    host_key: str
    public_key: str
    made_at: datetime

    @classmethod
    def of(cls, key: DeployKey) -> DeployKeyModel:
        return cls(
            id=key.id,
            host=key.host,
            port=key.port,
            host_key=HostKey(key.host_key).fingerprint,
            public_key=key.public_key,
            made_at=key.made_at,
        )


class DeployKeyRequest(SiteChange):
    """`host_key` is one of the fingerprints that the answer to a request without it shows; compare it with those that
    the host publishes. If the site has a deploy key for that host, it is kept, with this host key instead of the former
    one."""

    host: SshHost
    port: Annotated[int, Field(ge=1, le=65535)] = SSH_PORT
    host_key: Fingerprint | None = None


class DeployKeyDeletion(SiteChange):
    key_id: UUID


class DeployKeyMade(Model):
    """`host_keys`: those that the host presents now. `key` is null if the request confirmed none of them."""

    host_keys: list[ShownKey]
    key: DeployKeyModel | None


@operations.declare(
    "app.deploy_keys",
    "The deploy keys of a site, for private git repositories",
    Route.get("/sites/{id}/deploy-keys"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "host", "port", "host_key", "public_key", "made=made_at"),
)
async def list_keys(context: Context[Panel], request: SiteRequest) -> list[DeployKeyModel]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    await app_of(database, site)
    return [DeployKeyModel.of(key) for key in await deploy_keys_of(database, site.id)]


@operations.declare(
    "app.deploy_key_make",
    "Create a deploy key for a private git repository; without host_key, show the keys of the git host",
    Route.post("/sites/{id}/deploy-keys"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "host"),
    target="site",
)
async def make_key(context: Context[Panel], request: DeployKeyRequest) -> DeployKeyMade:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await app_of(services.database, site)
    host = request.host.lower()
    keys = await services.foreign_sites.keys(host, request.port)
    shown = [ShownKey.of(key) for key in keys]
    if request.host_key is None:
        return DeployKeyMade(host_keys=shown, key=None)
    host_key = confirmed(keys, request.host_key, host)

    async def work(tx: Transaction) -> DeployKey:
        locked = await locked_site_of(tx, context.principal, site.id)
        await app_of(tx, locked)
        made = await write_deploy_key(tx, services.sealer, locked, host, request.port, host_key.text)
        told = {"host": host, "port": request.port, "host_key": host_key.fingerprint}
        await audit.record(tx, context.caller, locked.target, told)
        return made

    return DeployKeyMade(host_keys=shown, key=DeployKeyModel.of(await services.database.transact(work)))


@operations.declare(
    "app.deploy_key_delete",
    "Delete a deploy key; its public half stays at the git host until you remove it there",
    Route.delete("/sites/{id}/deploy-keys/{key_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
    frees_space=True,
)
async def delete_key(context: Context[Panel], request: DeployKeyDeletion) -> None:
    site = await site_of(context.services.database, context.principal, request.id)

    async def work(tx: Transaction) -> None:
        locked = await locked_site_of(tx, context.principal, site.id)
        key = await delete_deploy_key(tx, locked.id, request.key_id)
        if key is None:
            raise not_found(f"{locked.domain} has no such deploy key.", hint="See `svc app deploy-keys`.")
        await audit.record(tx, context.caller, locked.target, {"host": key.host, "port": key.port})

    await context.services.database.transact(work)
