"""`svc audit export` and `svc audit verify`. Both go through the whole audit in parts; each call of the API takes a few
seconds."""

from __future__ import annotations

from typing import Any

import asyncclick as click

from svc.cli.everyday import shared
from svc.cli.failures import Exit, Failure
from svc.cli.output import show
from svc.cli.session import Session, narrow
from svc.cli.terminal import write_json

_FILTERS = ("actor", "operation", "target_kind", "target_id", "outcome", "since", "until", "after")

_ADDED_UP = ("seals", "rows", "archived_rows")


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


@shared
@click.command("verify")
@click.option("--after", default=0, help="Number of the last seal that was already compared.")
@click.option("--digest", help="Digest that was logged earlier; it must be that of a seal.")
@click.pass_obj
async def verify(session: Session, /, after: int, digest: str | None, **given: Any) -> None:
    """Compare the audit with its seals, archived rows included."""
    session = narrow(session, given)
    read = dict.fromkeys(_ADDED_UP, 0)
    query: dict[str, Any] = {"after": after, **({"digest": digest} if digest else {})}
    async with session.client() as client:
        while True:
            answer = await client.call("GET", "/audit/verify", query=query)
            read = {name: read[name] + answer[name] for name in _ADDED_UP}
            if answer["next_after"] is None:
                break
            query = {"after": answer["next_after"]}
    show({**answer, **read}, session.style)
    if answer["problem"] is not None:
        raise Failure(
            Exit.TASK_FAILED,
            f"the audit log does not match its seals: {answer['problem']}",
            "compare the rows with a backup of the database; docs/audit.md says what this means",
        )
