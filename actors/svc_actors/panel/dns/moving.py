"""Moves DNS records that point to a lost server to its replacement."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from svc_actors.store import Transaction


async def move_addresses(
    tx: Transaction, old: Iterable[IPv4Address | IPv6Address], new: Iterable[IPv4Address | IPv6Address]
) -> tuple[list[str], list[str]]:
    """Replace old addresses in records by the first new address of the same family. Returns the names of the changed
    records, and the names that still point to the old server because the new one has no address of that family."""
    own = list(new)
    moved, left = [], []
    for address in old:
        if address in own:
            continue
        follower = next((each for each in own if each.version == address.version), None)
        rows = await tx.fetch(
            """SELECT id, zone, name, type, data FROM dns_records
               WHERE type IN ('A', 'AAAA') AND data ->> 'address' = $1""",
            str(address),
        )
        for row in rows:
            if follower is None:
                left.append(f"{row['name']} {row['type']} {address}")
                continue
            data = row["data"] | {"address": str(follower)}
            there = await tx.fetchval(
                "SELECT true FROM dns_records WHERE zone = $1 AND name = $2 AND type = $3 AND md5(data::text) = "
                "md5($4::jsonb::text)",
                row["zone"],
                row["name"],
                row["type"],
                data,
            )
            if there:
                await tx.execute("DELETE FROM dns_records WHERE id = $1", row["id"])
            else:
                await tx.execute("UPDATE dns_records SET data = $2 WHERE id = $1", row["id"], data)
            await tx.execute("UPDATE dns_zones SET revision = revision + 1 WHERE name = $1", row["zone"])
            moved.append(f"{row['name']} {row['type']} {address} is {follower} now")
    return moved, left
