"""Names where the API takes ids: `svc vm start web-1` instead of a UUID.

A name must match exactly one thing; if it matches several, their ids are listed and nothing is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from svc.cli.description import OperationDescription
from svc.cli.failures import Exit, Failure
from svc.cli.idn import in_ascii

if TYPE_CHECKING:
    from svc.cli.client import Client

NAME_FIELDS = ("name", "slug", "email", "hostname", "domain", "login")
_PAGE_SIZE = 200


async def resolve(
    client: Client, listing: OperationDescription, given: str, names: tuple[str, ...] = NAME_FIELDS
) -> str:
    """The id of the row whose field (one of `names`) is `given`. If `given` is an id already, it is returned
    unchanged."""
    if is_id(given):
        return given
    found = [row async for row in rows(client, listing, given) if any(row.get(name) == given for name in names)]
    if not found and not given.isascii() and (name_of_dns := in_ascii(given)) is not None:
        # A domain name: lists have it in the form of the DNS.
        return await resolve(client, listing, name_of_dns, names)
    if len(found) == 1:
        return str(found[0]["id"])
    where = listing.path.rpartition("/")[2]
    if not found:
        hint = f"`svc {' '.join(listing.words)}` lists them"
        raise Failure(Exit.NOT_FOUND, f"nothing is named {given!r} in {where}", hint)
    ids = "\n     ".join(_told_apart(row) for row in found)
    raise Failure(
        Exit.CONFLICT, f"{given!r} is the name of {len(found)} entries in {where}", f"give one of the ids:\n     {ids}"
    )


async def rows(client: Client, listing: OperationDescription, text: str | None = None) -> AsyncIterator[dict[str, Any]]:
    """Every row of a list, or, if the list can be searched, those that contain `text`."""
    if listing.paged:
        query = {"q": text} if text and listing.parameter("q") else {}
        async for row in pages(client, listing.path, query):
            yield row
    else:
        for row in await client.call("GET", listing.path):
            yield row


async def pages(client: Client, path: str, query: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Every row of a paged list, page by page."""
    page, last = 1, 1
    while page <= last:
        answer = await client.call("GET", path, query={"page_size": _PAGE_SIZE} | dict(query) | {"page": page})
        for row in answer["items"]:
            yield row
        page, last = page + 1, answer["pages"]


def _told_apart(row: dict[str, Any]) -> str:
    facts = (row.get("project_name"), row.get("status"), row.get("email"), row.get("created_at"))
    return "  ".join(str(fact) for fact in (row["id"], *facts) if fact)


def is_id(given: str) -> bool:
    try:
        UUID(given)
    except ValueError:
        return False
    return True
