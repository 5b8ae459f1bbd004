"""`svc audit verify`: have the service compare the whole audit with its seals, a few seconds' worth a call."""

from __future__ import annotations

from typing import Any

import asyncclick as click

from svc.cli.everyday import shared
from svc.cli.failures import Exit, Failure
from svc.cli.output import show
from svc.cli.session import Session, narrow

_ADDED_UP = ("seals", "rows", "archived_rows")


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
