"""The life of a site with real accounts and a real nginx, told as JSON.

Run in a mount namespace with an /etc of its own (test_sites.py): what it makes and leaves there is nobody else's."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from svc_actors.store import Database
from svc_webhost.accounts import FIRST_UID, SystemAccounts
from svc_webhost.folders import HostFolders
from tests.support.nginx import Sites, nginx_sites
from tests.support.panel import PanelHarness, open_panel, recorded_host

LEAVE = "touch /tmp/left-by-a-site; sleep 1000 >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 &"


def snapshot(folders: HostFolders) -> dict[str, Any]:
    """What a site could leave on a server."""
    return {
        "accounts": {name: Path("/etc", name).read_text() for name in ("passwd", "group", "shadow", "gshadow")},
        "homes": sorted(str(path) for parent in (folders.sites, folders.site_logs) for path in parent.rglob("*")),
        "processes": [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_of_a_site(Path("/proc", pid))],
        "files": [str(path) for path in Path("/tmp").iterdir() if _uid(path) > FIRST_UID],
    }


def _is_of_a_site(process: Path) -> bool:
    """What has ended, and waits for its parent to look, runs no more."""
    try:
        ended = process.joinpath("stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not ended and _uid(process) > FIRST_UID


def _uid(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return 0


async def run_as(uid: int, *command: str) -> int:
    ended = await trio.run_process(
        command, user=uid, group=uid, extra_groups=[], check=False, capture_stdout=True, capture_stderr=True
    )
    return ended.returncode


async def live(panel: PanelHarness, nginx: Sites) -> dict[str, Any]:
    root = await panel.administrator()
    before = snapshot(nginx.folders)
    began = trio.current_time()
    site = (
        await root.post("/sites", {"domain": "life.example", "type": "static", "aliases": ["www.life.example"]})
    ).json()
    page = await nginx.visit("life.example")
    seconds = trio.current_time() - began
    alias = await nginx.visit("www.life.example")
    uid = FIRST_UID + site["number"]
    home = nginx.folders.sites / site["account"]
    stat = {path.name: (path.stat().st_uid, path.stat().st_mode & 0o7777) for path in (home, *home.iterdir())}
    others = await run_as(uid + 1, "/bin/cat", str(home / "public" / "index.html"))
    # What a site may have left: programs, and files where everybody may write.
    await run_as(uid, "/bin/sh", "-c", LEAVE)
    await root.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "a secret reason"})
    suspended = await nginx.visit("life.example")
    await root.post(f"/sites/{site['id']}/suspend", {"suspended": False})
    back = await nginx.visit("life.example")
    lines = (await root.get(f"/sites/{site['id']}/logs?q=GET")).json()["lines"]
    lived = snapshot(nginx.folders)
    job = (await root.delete(f"/sites/{site['id']}", {"confirm": "life.example"})).json()
    with trio.fail_after(60):
        while (ended := (await root.get(f"/jobs/{job['id']}")).json())["ended_at"] is None:
            await trio.sleep(0.02)
    gone = None
    try:
        await nginx.visit("life.example")
    except Exception as error:  # noqa: BLE001 - which error is the test's to judge
        gone = type(error).__name__
    return {
        "status": site["status"],
        "seconds": seconds,
        "page": page.text,
        "alias": alias.text,
        "uid": uid,
        "stat": stat,
        "others": others,
        "suspended": [suspended.status_code, suspended.text],
        "back": back.text,
        "lines": lines,
        "lived": lived,
        "job": ended,
        "gone": gone,
        "before": before,
        "after": snapshot(nginx.folders),
    }


async def main(url: str) -> None:
    with nginx_sites() as nginx:
        host = replace(recorded_host(), web=nginx.generations, accounts=SystemAccounts(nginx.folders))
        nginx.folders.site_logs.mkdir(parents=True)
        async with Database.open(url) as database, open_panel(database, nginx.folders.data, host, loops=None) as panel:
            result = await live(panel, nginx)
    sys.stderr.write(f"RESULT {json.dumps(result)}\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
