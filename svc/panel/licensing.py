"""Licensing: the edition of this server, and its licence, if it has one. Administrators only.

In the beta every feature is available with and without a licence: nothing else reads this.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.licensing import (
    LicenseError,
    LicenseState,
    delete_license,
    judged,
    read_license,
    verified,
    write_license,
)
from svc_actors.store import Queryable, Target, Transaction, audit
from svc_common.errors import conflict, not_found, wrong_field

operations = Operations[Panel]()

LicenseFile = Annotated[
    str,
    Field(max_length=16_384, description="The line of the licence file."),
    Shape(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", "the line in a licence file: letters, digits, - and _, with one dot"),
]


class LicenseView(Model):
    """`problem`: why the installed licence is not valid. The fields of the licence are null if there is no verified
    one; `expires_at` is also null for one that never expires."""

    state: LicenseState
    problem: str | None
    id: str | None
    holder: str | None
    edition: str | None
    issued_at: datetime | None
    expires_at: datetime | None
    installed_at: datetime | None


class Licensing(Model):
    """`limits` of the edition: always empty in the beta. `can_install`: the configuration has a key to verify licences
    with."""

    edition: Literal["beta"]
    install_id: UUID
    limits: dict[str, int]
    can_install: bool
    license: LicenseView


class LicenseInstallRequest(Request):
    license: LicenseFile


@operations.declare(
    "licensing.show",
    "The edition of this panel, and its licence",
    Route.get("/licensing"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("licensing", "show"),
)
async def show(context: Context[Panel], request: Empty) -> Licensing:
    return await _licensing(context, context.services.database)


@operations.declare(
    "licensing.install",
    "Install a licence, replacing the current one; it is verified offline",
    Route.put("/licensing"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("licensing", "install"),
    positional=("license",),
    target="license",
)
async def install(context: Context[Panel], request: LicenseInstallRequest) -> Licensing:
    services = context.services
    if (key := services.config.license_key) is None:
        raise conflict(
            "The configuration names no key to verify licences with; nothing was changed.",
            hint="Set `license-key` in /etc/svc/panel.toml to the issuer's public key, and restart the core.",
        )

    async def work(tx: Transaction) -> Licensing:
        try:
            license = verified(request.license, key, await _install_id(tx))
        except LicenseError as error:
            raise wrong_field("license", f"is not a licence of this panel: {error}") from error
        if license.expires_at is not None and license.expires_at <= services.clock():
            raise wrong_field("license", f"has expired at {license.expires_at:%Y-%m-%d %H:%M %Z}")
        await write_license(tx, request.license)
        await audit.record(tx, context.caller, Target("license", license.id, license.holder))
        return await _licensing(context, tx)

    return await services.database.transact(work)


@operations.declare(
    "licensing.remove",
    "Remove the licence; nothing else changes",
    Route.delete("/licensing"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("licensing", "remove"),
    confirm=True,
    target="license",
)
async def remove(context: Context[Panel], request: Empty) -> Licensing:

    async def work(tx: Transaction) -> Licensing:
        if not await delete_license(tx):
            raise not_found("This panel has no licence.", hint="It needs none.")
        await audit.record(tx, context.caller, Target("license", None, "license"))
        return await _licensing(context, tx)

    return await context.services.database.transact(work)


async def _install_id(queryable: Queryable) -> UUID:
    found: UUID = await queryable.fetchval("SELECT install_id FROM panel_installation")
    return found


async def _licensing(context: Context[Panel], queryable: Queryable) -> Licensing:
    services = context.services
    install_id, installed = await _install_id(queryable), await read_license(queryable)
    found = judged(installed, services.config.license_key, install_id, services.clock())
    license = found.license
    return Licensing(
        edition="beta",
        install_id=install_id,
        limits={},
        can_install=services.config.license_key is not None,
        license=LicenseView(
            state=found.state,
            problem=found.problem,
            id=license and license.id,
            holder=license and license.holder,
            edition=license and license.edition,
            issued_at=license and license.issued_at,
            expires_at=license and license.expires_at,
            installed_at=installed and installed.installed_at,
        ),
    )
