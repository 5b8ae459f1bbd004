"""The addresses of a pool: their holders, reservations with their reasons, and force-freeing. Administrators only."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.controller.networking.pool_models import Address, HeldAddress, LastAddress
from svc.controller.services import Controller
from svc.identity.fields import Reason
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import EVERYTHING, Condition, Page, PageRequest, contains, equals, literally, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.controller.networking.addresses import force_free
from svc_actors.controller.networking.pool_arithmetic import Slots
from svc_actors.controller.networking.reservations import block, reserve, unblock, unreserve
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_common.errors import not_found

operations = Operations[Controller]()

Kind = Annotated[
    str, Field(min_length=1, max_length=40), Shape(r"[a-z0-9][a-z0-9-]*", "lowercase letters, digits and hyphens")
]


class AllocationState(StrEnum):
    """The states of an allocation. A free address has none."""

    ALLOCATED = "allocated"
    RELEASING = "releasing"
    RESERVED = "reserved"
    BLOCKED = "blocked"


class AllocationList(PageRequest):
    id: UUID
    state: AllocationState | None = None


class Allocation(Model):
    """One address, or IPv6 sub-prefix, that is not free. `kind` and `note` are those of its reservation, if it is
    reserved; `arithmetic`: the pool itself or one of its hosts needs it."""

    ip: str
    state: AllocationState
    vm_id: UUID | None
    vm_name: str | None
    primary: bool
    arithmetic: bool
    kind: str | None
    reservation_id: UUID | None
    note: str | None
    changed_at: datetime


class Reservation(Model):
    """Addresses set aside, `range_end` included. `arithmetic`: reserved by the pool itself, for the reason in `note`;
    such a reservation cannot be deleted."""

    id: UUID
    ip: str
    range_end: str | None
    kind: str
    note: str
    arithmetic: bool
    created_at: datetime


class ReservationList(PageRequest):
    """`q` is searched in kind and note, and at the beginning of every address that is set aside."""

    id: UUID


class ReservationCreateRequest(Request):
    """`kind` is a word that the operator chooses. If one of the addresses is not free, none is reserved."""

    id: UUID
    ip: Address
    range_end: LastAddress | None = None
    kind: Kind = "manual"
    note: Reason


class ReservationRequest(Request):
    id: UUID
    rid: UUID


class AddressRequest(Request):
    """`ip`: an IPv6 sub-prefix as it is listed, or any address in it."""

    id: UUID
    ip: HeldAddress


class NotedAddressRequest(AddressRequest):
    note: Reason


_HELD = """allocations held
LEFT JOIN vms ON vms.id = held.vm_id
LEFT JOIN reservations ON reservations.id = held.reservation_id"""

_ALLOCATIONS = f"""
SELECT address_text(held.ip) AS ip, held.state, held.vm_id, vms.name AS vm_name, held.is_primary AS primary,
       coalesce(reservations.arithmetic, false) AS arithmetic, reservations.kind, held.reservation_id,
       coalesce(held.note, reservations.note) AS note, held.changed_at
FROM {_HELD}"""


@operations.declare(
    "pool.allocations",
    "List a pool's allocations and reservations",
    Route.get("/pools/{id}/allocations"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("ip", "state", "vm=vm_name", "note", "changed=changed_at"),
)
async def list_allocations(context: Context[Controller], request: AllocationList) -> Page[Allocation]:
    database = context.services.database
    await _require_pool(database, request.id)
    rows, total = await paginate(
        database,
        select=_ALLOCATIONS,
        source="allocations held",
        where=[
            Condition("held.pool_id = $1", (request.id,)),
            equals("held.state", request.state.value if request.state else None),
            _held_as(request.q, request.id),
        ],
        sortable={"ip": "held.ip", "state": "held.state", "changed_at": "held.changed_at"},
        default_sort="ip",
        request=request,
        tie="held.ip",
        known_total=None if request.q else _known_total(request),
    )
    return Page[Allocation].of([Allocation(**dict(row)) for row in rows], total, request)


def _known_total(request: AllocationList) -> Condition:
    return Condition(
        """SELECT coalesce(sum(number), 0) FROM list_numbers
           WHERE list = 'addresses by pool' AND scope = $1 AND ($2::text IS NULL OR words[1] = $2)""",
        (request.id, request.state),
    )


def _held_as(q: str | None, pool_id: UUID) -> Condition:
    """Addresses that start with the text, and addresses whose machine or note contains it. Each SELECT of the union
    uses its own index; an OR over three tables would use none."""
    if not q:
        return EVERYTHING
    return Condition(
        """held.ip IN (
            SELECT ip FROM allocations WHERE address_text(ip) LIKE $1
            UNION ALL
            SELECT ip FROM allocations WHERE pool_id = $4 AND note IS NOT NULL AND note ILIKE $2
            UNION ALL
            SELECT ip FROM allocations WHERE reservation_id IN (
                SELECT id FROM reservations WHERE pool_id = $4 AND note ILIKE $2)
            UNION ALL
            SELECT ip FROM allocations WHERE vm_id IN (
                SELECT vm_id FROM vm_texts
                WHERE text_pieces(ARRAY[name, hostname]) @> wanted_pieces($3) AND name ILIKE $2))""",
        (f"{literally(q)}%", f"%{literally(q)}%", q, pool_id),
    )


@operations.declare(
    "pool.reservations",
    "List the reservations of a pool",
    Route.get("/pools/{id}/reservations"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("ip", "until=range_end", "kind", "note", "by the pool=arithmetic", "id"),
)
async def list_reservations(context: Context[Controller], request: ReservationList) -> Page[Reservation]:
    database = context.services.database
    pool = await _require_pool(database, request.id)
    rows, total = await paginate(
        database,
        select="SELECT reservations.* FROM reservations",
        source="reservations",
        where=[Condition("reservations.pool_id = $1", (request.id,)), _reserved_as(request.q, request.id)],
        sortable={
            "ip": "reservations.first_slot",
            "kind": "reservations.kind",
            "created_at": "reservations.created_at",
        },
        default_sort="ip",
        request=request,
        tie="reservations.id",
    )
    return Page[Reservation].of([_reservation(pool, row) for row in rows], total, request)


@operations.declare(
    "pool.reserve",
    "Reserve addresses of a pool",
    Route.post("/pools/{id}/reservations", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "ip"),
)
async def add_reservation(context: Context[Controller], request: ReservationCreateRequest) -> Reservation:

    async def work(tx: Transaction) -> Reservation:
        row = await reserve(tx, request.id, request.ip, request.range_end, kind=request.kind, note=request.note)
        reservation = _reservation(await _require_pool(tx, request.id), row)
        await _audit(tx, context, request.id, reservation.model_dump(mode="json", include={"ip", "range_end", "note"}))
        return reservation

    return await context.services.database.transact(work)


@operations.declare(
    "pool.unreserve",
    "Delete a reservation, except one of the pool itself",
    Route.delete("/pools/{id}/reservations/{rid}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete_reservation(context: Context[Controller], request: ReservationRequest) -> None:

    async def work(tx: Transaction) -> None:
        row = await unreserve(tx, request.id, request.rid)
        reservation = _reservation(await _require_pool(tx, request.id), row)
        await _audit(tx, context, request.id, reservation.model_dump(mode="json", include={"ip", "range_end", "note"}))

    await context.services.database.transact(work)


@operations.declare(
    "pool.block",
    "Block a free address",
    Route.post("/pools/{id}/block"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "ip"),
)
async def block_address(context: Context[Controller], request: NotedAddressRequest) -> Allocation:

    async def work(tx: Transaction) -> Allocation:
        ip = await block(tx, request.id, request.ip, request.note)
        await _audit(tx, context, request.id, {"ip": ip, "note": request.note})
        row = await tx.fetchrow(f"{_ALLOCATIONS} WHERE held.pool_id = $1 AND held.ip = $2", request.id, ip_network(ip))
        return Allocation(**dict(row or {}))

    return await context.services.database.transact(work)


@operations.declare(
    "pool.unblock",
    "Unblock an address",
    Route.post("/pools/{id}/unblock"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "ip"),
)
async def unblock_address(context: Context[Controller], request: AddressRequest) -> None:

    async def work(tx: Transaction) -> None:
        await _audit(tx, context, request.id, {"ip": await unblock(tx, request.id, request.ip)})

    await context.services.database.transact(work)


@operations.declare(
    "pool.force_free",
    "Force-free an address that is being released, without its node's confirmation",
    Route.post("/pools/{id}/force-free"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "ip"),
    confirm=True,
)
async def force_free_address(context: Context[Controller], request: NotedAddressRequest) -> None:

    async def work(tx: Transaction) -> None:
        freed = await force_free(tx, request.id, request.ip)
        details = {
            "ip": freed["text"],
            "note": request.note,
            "vm_id": str(freed["vm_id"]),
            "vm_name": freed["vm_name"],
        }
        await _audit(tx, context, request.id, details)

    await context.services.database.transact(work)


def _reserved_as(q: str | None, pool_id: UUID) -> Condition:
    """Reservations whose kind or note contains the text, or that include an address which starts with the text."""
    if not q:
        return EVERYTHING
    said = contains(q, "reservations.kind", "reservations.note")
    reserved = "SELECT reservation_id FROM allocations WHERE pool_id = $2 AND address_text(ip) LIKE $3"
    return Condition(f"{said.sql} OR reservations.id IN ({reserved})", (*said.args, pool_id, f"{literally(q)}%"))


async def _require_pool(queryable: Queryable, pool_id: UUID) -> Slots:
    row = await queryable.fetchrow("SELECT cidr, prefix_len FROM pools WHERE id = $1", pool_id)
    if row is None:
        raise not_found("There is no such pool.")
    return Slots(ip_network(str(row["cidr"])), row["prefix_len"])


def _reservation(pool: Slots, row: Record) -> Reservation:
    alone = row["first_slot"] == row["last_slot"]
    return Reservation(
        id=row["id"],
        ip=pool.text_at(row["first_slot"]),
        range_end=None if alone else pool.text_at(row["last_slot"]),
        kind=row["kind"],
        note=row["note"],
        arithmetic=row["arithmetic"],
        created_at=row["created_at"],
    )


async def _audit(tx: Transaction, context: Context[Controller], pool_id: UUID, details: dict[str, Any]) -> None:
    await audit.record(
        tx,
        context.caller,
        Target("pool", pool_id, await tx.fetchval("SELECT name FROM pools WHERE id = $1", pool_id)),
        details,
    )
