"""Names where the API wants ids: `svc vm start web-1` instead of a UUID.

A name must mean exactly one thing; where it means several, the ids are listed and nothing is done.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure

COLLECTIONS = {
    "vm_id": "/vms",
    "image_id": "/images",
    "plan_id": "/plans",
    "project_id": "/projects",
    "node_id": "/nodes",
    "location_id": "/locations",
    "network_id": "/networks",
    "pool_id": "/pools",
    "user_id": "/users",
    "group_id": "/security-groups",
}
"""Request fields that hold an id, and the list in which their names are found."""

_NAME_FIELDS = ("name", "slug", "email", "hostname")


async def resolve(client: Client, collection: str, given: str) -> str:
    """The id that `given` names in a collection; an id stays as it is."""
    if _is_id(given):
        return given
    answer = await client.call("GET", collection, query={"q": given, "page_size": 200} if _paged(collection) else None)
    rows: list[dict[str, Any]] = answer["items"] if isinstance(answer, dict) else answer
    found = [row for row in rows if any(row.get(field) == given for field in _NAME_FIELDS)]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise Failure(Exit.NOT_FOUND, f"nothing is named {given!r} in {collection[1:]}")
    ids = ", ".join(str(row["id"]) for row in found)
    raise Failure(
        Exit.CONFLICT, f"{given!r} names {len(found)} things in {collection[1:]}", f"give one of the ids: {ids}"
    )


def _paged(collection: str) -> bool:
    return collection in {"/vms", "/nodes", "/users"}


def _is_id(given: str) -> bool:
    try:
        UUID(given)
    except ValueError:
        return False
    return True
