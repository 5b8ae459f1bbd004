"""Access accounts with a real sshd and the clients of OpenSSH, told as JSON.

Run in a mount namespace with an /etc of its own (test_sftp.py): the accounts of sites are none of this machine's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from svc_actors.host.accounts import FIRST_UID, SystemAccounts
from svc_actors.host.folders import HostFolders
from svc_actors.host.sftp import SftpServer, SftpSettings
from svc_actors.host.sftp.server import SERVICE
from svc_actors.store import Database
from tests.support.identity import Client
from tests.support.launchers import Place, keeper_place, until
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.stack import free_port

PASSWORD = "a-password-of-Ada's"
OPTIONS = {
    "StrictHostKeyChecking": "yes",
    "IdentitiesOnly": "yes",
    "NumberOfPasswordPrompts": "1",
    "ConnectTimeout": "20",
    "BatchMode": "no",
}


@dataclass
class Clients:
    """OpenSSH's own, as they are asked of nobody: `folder` has their keys."""

    folder: Path
    port: int

    @property
    def public_key(self) -> str:
        return (self.folder / "key.pub").read_text().strip()

    def prepare(self) -> None:
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")), check=True)
        (self.folder / "ask").write_text('#!/bin/sh\nprintf "%s\\n" "$GIVEN_PASSWORD"\n')
        (self.folder / "ask").chmod(0o755)

    def trust(self, keys: Sequence[str]) -> None:
        known = "".join(f"[127.0.0.1]:{self.port} {key}\n" for key in keys)
        (self.folder / "known_hosts").write_text(known)

    def command(self, program: str, password: str | None, *further: str) -> tuple[list[str], dict[str, str]]:
        way = "password" if password is not None else "publickey"
        options = OPTIONS | {"UserKnownHostsFile": str(self.folder / "known_hosts"), "PreferredAuthentications": way}
        command = [program, "-F", "none", *(f"-o{name}={value}" for name, value in options.items())]
        command += ["-i", str(self.folder / "key"), "-P" if program == "sftp" else "-p", str(self.port), *further]
        asking = {"SSH_ASKPASS": str(self.folder / "ask"), "SSH_ASKPASS_REQUIRE": "force"}
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **asking}
        return command, environment | {"GIVEN_PASSWORD": password or ""}

    async def sftp(self, login: str, *orders: str, password: str | None = None) -> dict[str, Any]:
        """What these orders of sftp(1) gave; the first that fails is the last."""
        command, environment = self.command("sftp", password, "-b", "-", f"{login}@127.0.0.1")
        return await self._run(command, environment, "\n".join(orders))

    async def ssh(self, login: str, *arguments: str) -> dict[str, Any]:
        command, environment = self.command("ssh", None, *arguments[:-1], f"{login}@127.0.0.1", *arguments[-1:])
        return await self._run(command, environment, "")

    async def forward(self, login: str, *arguments: str) -> dict[str, Any]:
        command, environment = self.command("ssh", None, *arguments, f"{login}@127.0.0.1")
        return await self._run(command, environment, "")

    async def _run(self, command: list[str], environment: dict[str, str], given: str) -> dict[str, Any]:
        with trio.fail_after(90):
            ran = await trio.run_process(
                command,
                env=environment,
                stdin=given.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                cwd=self.folder,
            )
        return {"status": ran.returncode, "out": ran.stdout.decode(), "err": ran.stderr.decode()}


def as_site(uid: int, *command: str) -> None:
    subprocess.run(command, user=uid, group=uid, extra_groups=[], check=True)


def processes_of(uid: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path("/proc", entry).stat().st_uid == uid:
                found.append(int(entry))
        except FileNotFoundError:
            continue
    return found


async def live(panel: PanelHarness, place: Place, server: SftpServer, clients: Clients) -> dict[str, Any]:
    root = await panel.administrator()
    folders = HostFolders(place.folder)
    sites = [
        (await root.post("/sites", {"domain": domain, "type": "static"})).json() for domain in ("a.test", "b.test")
    ]
    path, uid = f"/sites/{sites[0]['id']}", FIRST_UID + sites[0]["number"]
    home = folders.sites / sites[0]["account"]
    passwd = Path("/etc/passwd").read_text()

    made = [
        await _made(root, path, {"name": "key", "keys": [clients.public_key]}),
        await _made(root, path, {"name": "word", "password": PASSWORD}),
        await _made(root, path, {"name": "public", "folder": "public", "keys": [clients.public_key]}),
        await _made(root, path, {"name": "shop", "folder": "public/shop", "keys": [clients.public_key]}),
        await _made(root, path, {"name": "gone", "keys": [clients.public_key]}),
    ]
    key, word, public, shop, gone = [each["login"] for each in made]
    other = (await _made(root, f"/sites/{sites[1]['id']}", {"name": "key", "keys": [clients.public_key]}))["login"]
    clients.trust([each["public_key"] for each in (await root.get("/sftp/host-keys")).json()["keys"]])
    generated = await _made(root, path, {"name": "made", "folder": "private"})
    (clients.folder / "given.txt").write_text("given\n")
    (home / "private" / "secret").write_text("secret\n")
    os.chown(home / "private" / "secret", uid, uid)
    as_site(uid, "ln", "-s", "/etc/passwd", str(home / "public" / "out"))
    as_site(uid, "ln", "-s", str(folders.sites / sites[1]["account"] / "public" / "index.html"), f"{home}/public/b")
    as_site(uid, "ln", "-s", str(home / "private"), str(home / "public" / "shop"))

    result: dict[str, Any] = {
        "uid": uid,
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
    result["runs_without_logins"] = (await place.launcher.status(SERVICE)).running
    result["left"] = re.findall(r"s\d+-\w+", "".join(path.read_text() for path in (folders.sftp / "etc").glob("*d*")))
    result["keys_left"] = os.listdir(folders.sftp / "etc" / "keys")
    return result


async def _made(root: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await root.post(f"{path}/sftp", body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def opens(clients: Clients, login: str) -> bool:
    return bool((await clients.sftp(login, "pwd"))["status"] == 0)


class held:  # noqa: N801 - reads as what it is for
    """A session that stays open."""

    def __init__(self, clients: Clients, login: str) -> None:
        command, environment = clients.command("sftp", None, f"{login}@127.0.0.1")
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=clients.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def __aenter__(self) -> subprocess.Popen[bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"pwd\n")
        self.process.stdin.flush()
        said = b""
        with trio.fail_after(60):
            while b"Remote working directory" not in said:
                said += await trio.to_thread.run_sync(
                    os.read, self.process.stdout.fileno(), 1024, abandon_on_cancel=True
                )
        return self.process

    async def __aexit__(self, *_: object) -> None:
        self.process.kill()
        await trio.to_thread.run_sync(self.process.wait)


async def ended(session: subprocess.Popen[bytes]) -> int | None:
    """Its exit status, once the server has ended it; the client looks when it is asked for something."""
    assert session.stdin is not None
    with trio.move_on_after(30):
        while session.poll() is None:
            with suppress(BrokenPipeError):
                session.stdin.write(b"pwd\nls\n")
                session.stdin.flush()
            await trio.sleep(0.05)
    return session.poll()


async def last_login(panel: PanelHarness, place: Place, server: SftpServer, clients: Clients) -> dict[str, Any]:
    """The only login there is, which is removed while somebody is signed in with it."""
    root = await panel.administrator()
    site = (await root.post("/sites", {"domain": "a.test", "type": "static"})).json()
    only = await _made(root, f"/sites/{site['id']}", {"name": "only", "keys": [clients.public_key]})
    clients.trust([each["public_key"] for each in (await root.get("/sftp/host-keys")).json()["keys"]])
    async with held(clients, only["login"]) as session:
        # A server that is killed leaves the session, in a view of the server that the next one does not have.
        os.kill((await place.launcher.status(SERVICE)).pid or 0, signal.SIGKILL)
        await until(lambda: opens(clients, only["login"]))
        went_on = session.poll()
        await root.delete(f"/sites/{site['id']}/sftp/{only['id']}", {})
        return {"went_on": went_on, "ended": await ended(session)}


async def main(url: str, order: str) -> None:
    async with keeper_place() as place:
        folders, port = HostFolders(place.folder), free_port()
        folders.site_logs.mkdir(parents=True)
        clients = Clients(place.folder / "clients", port)
        clients.folder.mkdir()
        clients.prepare()
        server = SftpServer(folders, SftpSettings(port), place.launcher)
        host = replace(recorded_host(), accounts=SystemAccounts(folders), sftp=server)
        async with Database.open(url) as database, open_panel(database, place.folder, host) as panel:
            result = await {"live": live, "last_login": last_login}[order](panel, place, server, clients)
    sys.stderr.write(f"RESULT {json.dumps(result)}\n")


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
