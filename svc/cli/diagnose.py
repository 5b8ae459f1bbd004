"""`svc site diagnose DOMAIN [--repair NAME]`: one command over two operations of the panel."""

from __future__ import annotations

from typing import Any

import asyncclick as click

from svc.cli.everyday import shared
from svc.cli.output import show
from svc.cli.parameters import Name
from svc.cli.session import Session, narrow
from svc.cli.work import started_by


@shared
@click.command("diagnose")
@click.argument("site", type=Name("/sites"))
@click.option("--repair", metavar="REPAIR", help="Repair to run first, as named by a diagnosis.")
@click.pass_obj
async def diagnose(session: Session, /, site: str, repair: str | None, **given: Any) -> None:
    """What is wrong with a site, by what that shows, and which repair helps."""
    from svc.cli.following import check, follow
    from svc.cli.naming import resolve

    session = narrow(session, given)
    work = ended = None
    async with session.client() as client:
        path = f"/sites/{await resolve(client, session.listing('/sites'), site)}"
        if repair is not None:
            work = started_by(await client.call("POST", f"{path}/repair", body={"repair": repair}))
            assert work is not None, "a repair is a job"
            ended = await follow(client, work)
        answer = await client.call("GET", f"{path}/diagnose")
    show(answer, session.style)
    if work is not None and ended is not None:
        check(work, ended)
