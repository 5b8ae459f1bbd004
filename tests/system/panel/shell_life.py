"""Shells of sites with a real sshd and the client of OpenSSH, told as JSON. Run as `sftp_life` is (test_sftp.py)."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from svc_webhost.accounts import FIRST_UID
from svc_webhost.folders import HostFolders
from svc_webhost.site_runtime import prepare_shared_sockets
from tests.support.launchers import Place, until
from tests.support.panel import PanelHarness
from tests.system.panel.sftp_clients import Clients, access_account

SEEN = {
    "who": "id -u; id -G; pwd; echo $HOME $USER $SHELL",
    "others_files": "ls {other} {data}/sftp {data}/run/shells {data}/keeper /root /home/* 2>&1 "
    "| grep -v -e cannot -e ':$' -e '^$'",
    "others_processes": "ps -e -o uid= | sort -u; ls -d /proc/[0-9]* | wc -l",
    "others_tmp": "ls -A /tmp /var/tmp /dev/shm | grep -v svc-keeper",
    "engines": "ls {data}/run/shared/mariadb",
    "others_sockets": "ls {data}/run",
    "no_new_privileges": "grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status",
    "read_only": "touch /etc/x /usr/x /var/x 2>&1",
    "descriptors": "ls /proc/self/fd | wc -l",
}
TRIED = {
    "status": "exit 7",
    "killed": "kill -TERM $$",
    "output": "head -c 3000000 /dev/zero; echo said >&2",
    "php": "php -r 'echo PHP_SAPI, getmyuid();'",
    "git": "cd private && git init -q . && git config user.email a@a.test && git config user.name a && "
    "echo x > x && git add x && git commit -qm x && git log --oneline | wc -l",
}
BOMB = "bomb() { bomb | bomb & }; bomb; sleep 60"
"""Started by a shell of the site: each of its processes begins two."""


async def life(panel: PanelHarness, place: Place, clients: Clients) -> dict[str, Any]:
    root = await panel.administrator()
    folders = HostFolders(place.folder)
    prepare_shared_sockets(folders)
    (folders.shared_sockets / "mariadb").mkdir()
    engine = socket.socket(socket.AF_UNIX)
    engine.bind(str(folders.shared_sockets / "mariadb" / "mysqld.sock"))
    ada, bob = [
        (await root.post("/sites", {"domain": domain, "type": "static"} | limits)).json()
        for domain, limits in (("a.test", {"processes": 40}), ("b.test", {}))
    ]
    path, uid = f"/sites/{ada['id']}", FIRST_UID + ada["number"]
    home, other = folders.sites / ada["account"], folders.sites / bob["account"]
    made = await access_account(root, path, {"name": "ada", "kind": "shell", "keys": [clients.public_key]})
    login = made["login"]
    bobs = (
        await access_account(root, f"/sites/{bob['id']}", {"name": "b", "kind": "shell", "keys": [clients.public_key]})
    )["login"]
    clients.trust([each["public_key"] for each in (await root.get("/sftp/host-keys")).json()["keys"]])
    (other / "public" / "secret").write_text("bob's")
    everybodys = Path("/tmp", f"of-{bob['account']}")
    everybodys.touch()

    names = {"other": other, "data": place.folder}
    result: dict[str, Any] = {"uid": uid, "home": str(home), "account": ada["account"]}
    for what, command in SEEN.items():
        result[what] = await clients.ssh(login, command.format(**names))
    everybodys.unlink()
    for what, command in TRIED.items():
        told = await clients.ssh(login, command)
        result[what] = told | {"out": told["out"][:200], "length": len(told["out"])}
    result["processes_without_a_limit"] = await clients.ssh(bobs, "ulimit -u")
    result["given"] = await clients.ssh(login, "cat", given="through")
    result["terminal"] = await clients.terminal(login, b"tty; stty size; echo in-$((40+2)); exit 5\n")
    result["interrupted"] = await clients.terminal(login, b"sleep 600\n", b"\x03", b"echo status-$?; exit\n")
    result["forward"] = await clients.forward(login, "-W", f"127.0.0.1:{clients.port}")
    result["copied"] = await _copied(clients, login, home)

    # What is begun in the background is the login's as well, and ends with it.
    await clients.ssh(login, "setsid nohup sleep 600 >/dev/null 2>&1 & echo begun")
    async with (
        clients.open(login, "echo ready; sleep 600") as session,
        clients.open(bobs, "echo ready; cat") as bystander,
    ):
        bomb = await clients.ssh(login, f"({BOMB}) >/dev/null 2>&1 & sleep 3; echo lit")
        result["bomb"] = bomb["out"]
        result["other_site_meanwhile"] = await clients.ssh(
            bobs, "echo here; for i in 1 2 3; do /bin/true || echo no; done"
        )
        result["most_processes"] = len(_running(home, login))
        await root.delete(f"{path}/sftp/{made['id']}", {})
        result["session"] = await clients.ended(session)
        result["bystander"] = bystander.poll()
    with trio.move_on_after(60):
        while _running(home, login):
            await trio.sleep(0.05)
    result["left_running"] = len(_running(home, login))
    result["deleted"] = await clients.ssh(login, "true")

    # A site that is suspended, or that may have no shell any more, opens none.
    async with clients.open(bobs, "echo ready; sleep 600") as session:
        await root.patch(f"/sites/{bob['id']}", {"shell": False})
        result["not_allowed"] = await clients.ended(session)
    await root.patch(f"/sites/{bob['id']}", {"shell": None})
    await until(lambda: clients.opens(bobs))
    async with clients.open(bobs, "echo ready; sleep 600") as session:
        await root.post(f"/sites/{bob['id']}/suspend", {"suspended": True, "reason": "late"})
        result["suspended"] = await clients.ended(session)
    await until(lambda: _nothing_runs(place))
    result["services"] = sorted(await place.launcher.names())
    engine.close()
    return result


def _running(home: Path, login: str) -> list[int]:
    """Processes of this site and this login: other tests may have sites of the same number meanwhile."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            if f"HOME={home}".encode() in variables or f"USER={login}".encode() in variables:
                found.append(int(entry))
    return found


async def _nothing_runs(place: Place) -> bool:
    return not any("shell" in name for name in await place.launcher.names())


async def _copied(clients: Clients, login: str, home: Path) -> dict[str, Any]:
    """By scp, sftp, and rsync where this machine has it."""
    (clients.folder / "copied.txt").write_text("copied")
    found = {
        "scp": await clients.copy("scp", login, "copied.txt", "private/by-scp"),
        "sftp": await clients.sftp(login, "put copied.txt private/by-sftp", "ls private"),
    }
    if shutil.which("rsync"):
        found["rsync"] = await clients.copy("rsync", login, "copied.txt", "private/by-rsync")
    return {name: told["status"] for name, told in found.items()} | {
        "files": sorted(each.name for each in (home / "private").glob("by-*"))
    }
