"""`svc audit export`: entries of the audit as JSON, one a line, the oldest first."""

from __future__ import annotations

from typing import Any

import asyncclick as click

from svc.cli.everyday import shared
from svc.cli.session import Session, narrow
from svc.cli.terminal import write_json

_FILTERS = ("actor", "operation", "target_kind", "target_id", "outcome", "since", "until", "after")


@shared
@click.command("export")
@click.option("--actor", help="Who did it: only entries of this actor.")
@click.option("--operation", help="Only this operation, named as in `svc ops`.")
@click.option("--target-kind", help="Only targets of this kind.")
@click.option("--target-id", help="Only the target with this id.")
@click.option("--outcome", type=click.Choice(["ok", "denied", "failed"]), help="Only entries with this outcome.")
@click.option("--since", metavar="TIME", help="Only entries from this time on, such as 2026-11-01T00:00:00Z.")
@click.option("--until", metavar="TIME", help="Only entries before this time.")
@click.option("--after", type=int, help="Continue after the entry with this number, the last that you already have.")
@click.pass_obj
async def export(session: Session, /, **given: Any) -> None:
    """Write entries of the audit as JSON, one a line, the oldest first."""
    query = {name: value for name in _FILTERS if (value := given.pop(name)) is not None}
    session = narrow(session, given)
    async with session.client() as client:
        while True:
            part = await client.call("GET", "/audit/export", query=query)
            for entry in part["entries"]:
                write_json(entry)
            if part["next_after"] is None:
                return
            query["after"] = part["next_after"]
