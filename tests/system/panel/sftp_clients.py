"""The clients of OpenSSH, as tests use them against the panel's sshd."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from tests.support.harness import Client

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

    async def ssh(self, login: str, *arguments: str, given: str = "") -> dict[str, Any]:
        command, environment = self.command("ssh", None, *arguments[:-1], f"{login}@127.0.0.1", *arguments[-1:])
        return await self._run(command, environment, given)

    async def opens(self, login: str) -> bool:
        return bool((await self.ssh(login, "true"))["status"] == 0)

    async def copy(self, program: str, login: str, source: str, target: str) -> dict[str, Any]:
        command, environment = self.command("ssh" if program == "rsync" else program, None)
        if program == "rsync":
            command = ["rsync", "-e", " ".join(command)]
        else:
            command[command.index("-p")] = "-P"
        return await self._run([*command, source, f"{login}@127.0.0.1:{target}"], environment, "")

    @asynccontextmanager
    async def open(self, login: str, command: str) -> AsyncIterator[subprocess.Popen[bytes]]:
        """A session that has said `ready`, and goes on."""
        words, environment = self.command("ssh", None, f"{login}@127.0.0.1", command)
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            assert process.stdout is not None
            with trio.fail_after(60):
                said = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            assert said == b"ready\n", said
            yield process
        finally:
            process.kill()
            await trio.to_thread.run_sync(process.wait)

    async def ended(self, session: subprocess.Popen[bytes]) -> int | None:
        """The exit status of its client, once the server has ended it."""
        with trio.move_on_after(60):
            while session.poll() is None:
                await trio.sleep(0.05)
        return session.poll()

    async def terminal(self, login: str, *typed: bytes) -> dict[str, Any]:
        """What is seen at a terminal of 33 lines and 99 columns at which this is typed, each after the shell has said
        something and is silent."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 33, 99, 0, 0))
        words, environment = self.command("ssh", None, f"{login}@127.0.0.1")
        process = subprocess.Popen(
            words,
            env=environment | {"TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        seen, waiting = b"", list(typed)
        try:
            with trio.fail_after(90):
                while process.poll() is None:
                    with trio.move_on_after(1.0) as silence:
                        await trio.lowlevel.wait_readable(ours)
                    if silence.cancelled_caught:
                        if waiting and seen:
                            os.write(ours, waiting.pop(0))
                        continue
                    with suppress(OSError):
                        seen += os.read(ours, 65536)
            with suppress(OSError):
                seen += os.read(ours, 65536)
        finally:
            process.kill()
            await trio.to_thread.run_sync(process.wait)
            os.close(ours)
        return {"status": process.returncode, "out": seen.decode(errors="replace")}

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


def processes_of(uid: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path("/proc", entry).stat().st_uid == uid:
                found.append(int(entry))
        except FileNotFoundError:
            continue
    return found


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


async def access_account(root: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await root.post(f"{path}/sftp", body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made
