"""What a panel with many access accounts asks of those who use them: `tools/bench sftp [--logins 1000]`.

A panel runs as on a server, with sites of 18 accounts each, most of them written straight into the database. With few
accounts and with all of them: one more is created and removed, and one is changed, until the server lets in who may;
and the time from the start of sftp(1) to its end. Medians of five.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import httpx
import trio
from rich.console import Console
from rich.table import Table

from svc_actors.store import Database
from tests.support.panel_programs import PanelPrograms, shared_panel_programs
from tests.support.stack import free_port
from tests.system.panel.sftp_clients import Clients

OF_A_SITE: Final = 18
TURNS: Final = 5


async def _seconds(turn: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(TURNS):
        began = monotonic()
        await turn()
        times.append(monotonic() - began)
    return median(times)


async def _measured(panel: PanelPrograms, sftp: Clients, most: int) -> list[tuple[int, float, float, float]]:
    """Accounts in all; seconds of a creation and removal, of a change, and of a sign-in."""
    await panel.customer()
    sftp.prepare()
    socket = panel.data / "postgresql" / "socket"
    rows, sites = [], list[str]()
    async with panel.client() as root, Database.open(f"postgresql://svc@/svc?host={socket}", size=1) as database:
        for wanted in (OF_A_SITE, most // 10, most):
            while len(sites) * OF_A_SITE < wanted:
                sites.append((await panel.site(f"site{len(sites)}.example.com"))["id"])
                for number in range(OF_A_SITE - 1):
                    await database.execute(
                        "INSERT INTO sftp_accounts (site_id, name, folder, keys) VALUES ($1, $2, '', $3)",
                        sites[-1],
                        f"u{number}",
                        [" ".join(sftp.public_key.split()[:2])],
                    )
            rows.append((len(sites) * OF_A_SITE, *await _times(root, sftp, f"/sites/{sites[-1]}/sftp")))
    return rows


async def _times(root: httpx.AsyncClient, sftp: Clients, at: str) -> tuple[float, float, float]:
    # With it the server has taken those that were written by hand.
    account = await _done(root, "POST", at, {"name": "last", "keys": [sftp.public_key]})
    sftp.trust([key["public_key"] for key in (await root.get("/sftp/host-keys")).json()["keys"]])
    change = partial(_done, root, "PATCH", f"{at}/{account['id']}", {"keys": [sftp.public_key]})
    return (
        await _seconds(partial(_made_and_removed, root, at, sftp.public_key)),
        await _seconds(change),
        await _seconds(partial(_signed_in, sftp, account["login"])),
    )


async def _done(root: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await root.request(method, path, json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


async def _made_and_removed(root: httpx.AsyncClient, at: str, key: str) -> None:
    """A site has at most 20."""
    made = await _done(root, "POST", at, {"name": "more", "keys": [key]})
    await _done(root, "DELETE", f"{at}/{made['id']}", {})


async def _signed_in(sftp: Clients, login: str) -> None:
    listed = await sftp.sftp(login, "ls")
    assert listed["status"] == 0, listed


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench sftp", description=__doc__)
    parser.add_argument("--logins", type=int, default=1000)
    most = parser.parse_args(arguments).logins
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, shared_panel_programs(("--sftp-port", str(port))) as panel:
        rows = trio.run(_measured, panel, Clients(Path(folder), port), most)
    table = Table(box=None, pad_edge=False)
    for heading in ("accounts", "creation and removal, s", "a change, s", "sign-in, s"):
        table.add_column(heading, justify="right")
    for accounts, *seconds in rows:
        table.add_row(str(accounts), *[f"{each:.2f}" for each in seconds])
    Console(highlight=False).print(table)
