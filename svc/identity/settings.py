"""The settings that administrators choose for the whole service. A setting that was never set has its default.

This module holds the settings that every service has; each service extends the model by its own and declares the
operations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar
from uuid import UUID

from pydantic import Field

from svc.identity import second_factor_records
from svc.identity.fields import Line, Name
from svc.identity.services import IdentityServices
from svc.registry.operation import Context, Model, Request
from svc_actors.disk_space import Thresholds
from svc_actors.store import Queryable, Target, Transaction, audit
from svc_common.errors import conflict

Percent = Annotated[int, Field(ge=50, le=99)]
Days = Annotated[int, Field(ge=1, le=36_500)]


class Settings(Model):
    """`service_name` heads the pages; `support_contact` is shown to users who are refused. `require_second_factor`:
    administrators sign in with a code as well. `keep_...`: for how many days events, audit rows, ended sessions and
    sent mails are kept (docs/operations.md). `disk_...`: how full a disk of the service is when an alert is raised
    (docs/full-disks.md)."""

    service_name: str = "Virtual machines"
    support_contact: str = ""
    require_second_factor: bool = False
    keep_event_days: int = 7
    keep_audit_days: int = 400
    keep_session_days: int = 30
    keep_mail_days: int = 30
    disk_warning_percent: int = Thresholds.warning_percent
    disk_critical_percent: int = Thresholds.critical_percent
    disk_critical_free_mib: int = Thresholds.critical_free_mib


SettingsT = TypeVar("SettingsT", bound=Settings)


class SettingsUpdate(Request):
    """Fields left out stay as they are."""

    service_name: Name | None = None
    support_contact: Line | None = None
    require_second_factor: bool | None = None
    keep_event_days: Days | None = None
    keep_audit_days: Annotated[int, Field(ge=30, le=36_500)] | None = None
    keep_session_days: Days | None = None
    keep_mail_days: Days | None = None
    disk_warning_percent: Percent | None = None
    disk_critical_percent: Percent | None = None
    disk_critical_free_mib: Annotated[int, Field(ge=0, le=1_048_576)] | None = None


async def read_settings(queryable: Queryable) -> Settings:
    """The settings that every service has."""
    return await read_as(Settings, queryable)


async def read_as(model: type[SettingsT], queryable: Queryable) -> SettingsT:
    """The settings of a service, as its own model."""
    rows = await queryable.fetch("SELECT name, value FROM settings")
    known = model.model_fields
    return model.model_validate({row["name"]: row["value"] for row in rows if row["name"] in known})


async def change_settings(
    model: type[SettingsT],
    context: Context[IdentityServices],
    request: SettingsUpdate,
    require: Callable[[Transaction], Awaitable[None]] | None = None,
) -> SettingsT:
    """Write the settings that `request` carries, with an audit row; returns all of them. `require` is called first, in
    the same transaction, and raises an error for settings that other records do not allow."""
    changes = request.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    async def work(tx: Transaction) -> SettingsT:
        if require is not None:
            await require(tx)
        for name, value in changes.items():
            await tx.execute(
                """
                INSERT INTO settings (name, value) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = now()
                """,
                name,
                value,
            )
        if request.require_second_factor:
            await _require_second_factor(tx, context.principal.user_id)
        await audit.record(tx, context.caller, Target("settings", None, None), {"changed": changes})
        return await read_as(model, tx)

    return await context.services.database.transact(work)


async def _require_second_factor(tx: Transaction, asker: UUID | None) -> None:
    """End the sessions of administrators who have no second factor. Raises `conflict` if the caller has none."""
    if asker is not None and (await second_factor_records.state(tx, asker)).confirmed_at is None:
        raise conflict("You have no second factor yourself.", hint="Set one up first: `svc second-factor enrol`.")
    await second_factor_records.end_sessions_without(tx)
