"""Access accounts with a real sshd and the clients of OpenSSH, told as JSON.

Run in a mount namespace with an /etc of its own (test_sftp.py): the accounts of sites are none of this machine's."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from svc_actors.store import Database
from svc_webhost.accounts import FIRST_UID, SystemAccounts
from svc_webhost.folders import HostFolders
from svc_webhost.sftp import SftpServer, SftpSettings
from svc_webhost.sftp.accept import has_signed_in
from svc_webhost.sftp.server import MOST_CONNECTIONS, SERVICE, connections
from tests.support import port_taker
from tests.support.launchers import Place, keeper_place, until
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.stack import free_port
from tests.system.panel import shell_life
from tests.system.panel.sftp_clients import Clients, access_account, ended, held, processes_of

PASSWORD = "a-password-of-Ada's"


def as_site(uid: int, *command: str) -> None:
    subprocess.run(command, user=uid, group=uid, extra_groups=[], check=True)


async def live(panel: PanelHarness, place: Place, clients: Clients) -> dict[str, Any]:
    root = await panel.administrator()
    folders = HostFolders(place.folder)
    sites = [
        (await root.post("/sites", {"domain": domain, "type": "static"})).json() for domain in ("a.test", "b.test")
    ]
    path, uid = f"/sites/{sites[0]['id']}", FIRST_UID + sites[0]["number"]
    home = folders.sites / sites[0]["account"]
    passwd = Path("/etc/passwd").read_text()

    taker = subprocess.Popen(
        (sys.executable, "-I", "-S", str(port_taker.__file__), str(clients.port)),
        user=uid,
        group=uid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert taker.stdout is not None
    assert taker.stdout.readline() == "tries\n"
    killed = (await place.launcher.status(SERVICE)).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: another(place, killed))

    made = [
        await access_account(root, path, {"name": "key", "keys": [clients.public_key]}),
        await access_account(root, path, {"name": "word", "password": PASSWORD}),
        await access_account(root, path, {"name": "public", "folder": "public", "keys": [clients.public_key]}),
        await access_account(root, path, {"name": "shop", "folder": "public/shop", "keys": [clients.public_key]}),
        await access_account(root, path, {"name": "gone", "keys": [clients.public_key]}),
    ]
    key, word, public, shop, gone = [each["login"] for each in made]
    other = (await access_account(root, f"/sites/{sites[1]['id']}", {"name": "key", "keys": [clients.public_key]}))[
        "login"
    ]
    clients.trust([each["public_key"] for each in (await root.get("/sftp/host-keys")).json()["keys"]])
    generated = await access_account(root, path, {"name": "made", "folder": "private"})
    (clients.folder / "given.txt").write_text("given\n")
    (home / "private" / "secret").write_text("secret\n")
    os.chown(home / "private" / "secret", uid, uid)
    as_site(uid, "ln", "-s", "/etc/passwd", str(home / "public" / "out"))
    as_site(uid, "ln", "-s", str(folders.sites / sites[1]["account"] / "public" / "index.html"), f"{home}/public/b")
    as_site(uid, "ln", "-s", str(home / "private"), str(home / "public" / "shop"))

    await place.launcher.restart(SERVICE)
    port_taken = json.loads(taker.communicate("")[0])

    result: dict[str, Any] = {
        "uid": uid,
        "port_taken": port_taken,
        "by_key": await clients.sftp(key, "pwd", "put given.txt public/given.txt", "ls -1"),
        "by_password": await clients.sftp(word, "ls -1 public", password=PASSWORD),
        "by_made_up_password": await clients.sftp(generated["login"], "ls -1", password=generated["password"]),
        "wrong_password": await clients.sftp(word, "ls", password="another-password"),
        "key_without_a_key": await clients.sftp(word, "ls"),
        "root": await clients.sftp("root", "ls"),
        "site_itself": await clients.sftp(sites[0]["account"], "ls"),
        "up": await clients.sftp(key, "ls -1a /", "ls -1 ../../.."),
        "above": await clients.sftp(key, "cd /", "mkdir made"),
        "link_out": await clients.sftp(key, "get public/out"),
        "own_link_out": await clients.sftp(key, "ln -s ../../../../etc/shadow laid", "get laid"),
        "other_site": await clients.sftp(key, "get public/b"),
        "other_site_by_path": await clients.sftp(key, f"ls {folders.sites / sites[1]['account']}"),
        "folder": await clients.sftp(public, "ls -1", "ls -1 /site"),
        "folder_up": await clients.sftp(public, "get ../private/secret"),
        "folder_that_is_a_link": await clients.sftp(shop, "ls"),
        "other": await clients.sftp(other, "ls -1 public", "put given.txt public/of-b.txt"),
        "command": await clients.ssh(key, "id"),
        "shell": await clients.ssh(key, "-tt", "-v"),
        "forward": await clients.forward(key, "-W", f"127.0.0.1:{clients.port}"),
        "forward_back": await clients.forward(key, "-N", "-R", "0:127.0.0.1:1", "-oExitOnForwardFailure=yes"),
        "given": [(home / "public/given.txt").stat().st_uid, (home / "public/given.txt").stat().st_mode & 0o777],
        "of_b": (folders.sites / sites[1]["account"] / "public" / "of-b.txt").stat().st_uid,
        "passwd_unchanged": Path("/etc/passwd").read_text() == passwd,
        "machines_mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "/run/sftp" in line],
        "settings": (
            await trio.run_process(
                ["/usr/sbin/sshd", "-T", "-f", str(folders.sftp / "sshd_config")], capture_stdout=True
            )
        ).stdout.decode(),
    }

    # A folder that has become a real one is what the login sees from the next agreement on.
    as_site(uid, "rm", str(home / "public" / "shop"))
    as_site(uid, "mkdir", str(home / "public" / "shop"))
    await panel.services.sftp.agree()
    result["folder_again"] = await clients.sftp(shop, "put given.txt", "ls -1")

    # A login that has all its connections keeps them, and gets no further one for long.
    async with AsyncExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            await stack.enter_async_context(held(clients, other))
        before = connections(folders.sftp / "etc")[other]
        strangers = frozenset(
            int(line.split(":")[2])
            for line in (folders.sftp / "etc" / "passwd").read_text().splitlines()
            if line.startswith(("root:", "sshd:"))
        )
        result["known_as_signed_in"] = [has_signed_in(pid, strangers) for pid in before]
        with socket.create_connection(("127.0.0.1", clients.port)) as silent:
            silent.recv(1024)
            accepting = (await place.launcher.status(SERVICE)).pid or 0
            sshds = Path(f"/proc/{accepting}/task/{accepting}/children").read_text().split()
            result["known_as_strangers"] = [pid for pid in map(int, sshds) if not has_signed_in(pid, strangers)]
        surplus = held(clients, other).process
        stack.callback(surplus.kill)
        await until(lambda: over(panel, surplus))
        result["connections"] = len(before)
        result["connections_kept"] = connections(folders.sftp / "etc")[other] == before

    # Whoever is signed in is out at once when the account is deleted, and when the site is suspended.
    accounts = {each["login"]: each["id"] for each in made}
    async with held(clients, gone) as session, held(clients, key) as kept:
        await root.delete(f"{path}/sftp/{accounts[gone]}", {})
        result["session_of_deleted"] = await ended(session)
        result["kept"] = kept.poll()
        result["deleted"] = await clients.sftp(gone, "ls")
        await root.post(f"{path}/suspend", {"suspended": True, "reason": "late"})
        result["session_of_suspended"] = await ended(kept)
    result["suspended"] = await clients.sftp(key, "ls")
    with trio.move_on_after(30):  # What is killed is gone when its parent has looked.
        while processes_of(uid):
            await trio.sleep(0.05)
    result["left_running"] = processes_of(uid)
    await root.post(f"{path}/suspend", {"suspended": False})
    await until(lambda: opens(clients, key))

    # The server is killed: it comes back, with everybody who may sign in.
    os.kill((await place.launcher.status(SERVICE)).pid or 0, signal.SIGKILL)
    await until(lambda: opens(clients, key))

    await root.patch(f"{path}/sftp/{accounts[word]}", {"password": "another-password"})
    result["new_password"] = await clients.sftp(word, "ls", password="another-password")
    result["old_password"] = await clients.sftp(word, "ls", password=PASSWORD)
    for site in sites:
        job = (await root.delete(f"/sites/{site['id']}", {"confirm": site["domain"]})).json()
        with trio.fail_after(60):
            while (done := (await root.get(f"/jobs/{job['id']}")).json())["ended_at"] is None:
                await trio.sleep(0.05)
        result[f"job of {site['domain']}"] = done["status"]
    result["without_logins"] = await clients.sftp(key, "ls")
    result["left"] = re.findall(r"s\d+-\w+", "".join(path.read_text() for path in (folders.sftp / "etc").glob("*d*")))
    result["keys_left"] = os.listdir(folders.sftp / "etc" / "keys")
    return result


async def another(place: Place, before: int) -> bool:
    status = await place.launcher.status(SERVICE)
    return status.pid not in (None, before)


async def over(panel: PanelHarness, session: subprocess.Popen[bytes]) -> bool:
    """Whether the server has ended it by now; the client looks when it is asked for something."""
    await panel.services.sftp.agree()
    assert session.stdin is not None
    with suppress(BrokenPipeError):
        session.stdin.write(b"ls\n")
        session.stdin.flush()
    return session.poll() is not None


async def opens(clients: Clients, login: str) -> bool:
    return bool((await clients.sftp(login, "pwd"))["status"] == 0)


async def last_login(panel: PanelHarness, place: Place, clients: Clients) -> dict[str, Any]:
    """The only login there is, which is removed while somebody is signed in with it."""
    root = await panel.administrator()
    site = (await root.post("/sites", {"domain": "a.test", "type": "static"})).json()
    only = await access_account(root, f"/sites/{site['id']}", {"name": "only", "keys": [clients.public_key]})
    clients.trust([each["public_key"] for each in (await root.get("/sftp/host-keys")).json()["keys"]])
    async with held(clients, only["login"]) as session:
        # A server that is killed leaves the session, in a view of the server that the next one does not have.
        os.kill((await place.launcher.status(SERVICE)).pid or 0, signal.SIGKILL)
        await until(lambda: opens(clients, only["login"]))
        went_on = session.poll()
        await root.delete(f"/sites/{site['id']}/sftp/{only['id']}", {})
        return {"went_on": went_on, "ended": await ended(session)}


LIVES = {"live": live, "last_login": last_login, "shell": shell_life.life}


async def main(url: str, order: str) -> None:
    async with keeper_place() as place:
        folders, port = HostFolders(place.folder), free_port()
        folders.site_logs.mkdir(parents=True)
        clients = Clients(place.folder / "clients", port)
        clients.folder.mkdir()
        clients.prepare()
        server = SftpServer(folders, SftpSettings(port), place.launcher)
        host = replace(recorded_host(), accounts=SystemAccounts(folders), sftp=server)
        async with Database.open(url) as database, open_panel(database, place.folder, host, loops=None) as panel:
            result = await LIVES[order](panel, place, clients)
    sys.stderr.write(f"RESULT {json.dumps(result)}\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
