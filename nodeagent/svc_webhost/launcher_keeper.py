"""The launcher for servers without systemd as the first process: a client of the keeper, which it starts if needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio

from svc_webhost import keeper
from svc_webhost.folders import HostFolders
from svc_webhost.keeper.__main__ import ANOTHER
from svc_webhost.launcher import GroupName, LauncherError, Limits, Service, ServiceName, ServiceStatus

_JOIN = (sys.executable, "-I", "-S", str(Path(keeper.__file__).with_name("join.py")))
PROGRAM = (sys.executable, "-I", "-S", str(Path(keeper.__file__).with_name("__main__.py")))
_ANSWERS_WITHIN = 30.0
_STARTS_WITHIN = 30.0
_LOOK_AGAIN = 0.02
_LARGEST = 1 << 24


class KeeperLauncher:
    def __init__(self, folders: HostFolders) -> None:
        self._folders = folders
        self._starting = trio.Lock()
        self._started: trio.Process | None = None
        self._joins = False

    async def ensure(self, service: Service) -> ServiceStatus:
        return _status(await self._ask({"request": "ensure", "service": wire(service)}, service.stop_seconds))

    async def limit(self, group: GroupName, limits: Limits) -> None:
        await self._ask({"request": "limit", "group": group, "limits": asdict(limits)})

    async def reload(self, name: ServiceName) -> None:
        await self._ask({"request": "reload", "name": name})

    async def restart(self, name: ServiceName) -> None:
        await self._ask({"request": "restart", "name": name}, 600.0)

    async def stop_idle(self, name: ServiceName) -> None:
        await self._ask({"request": "rest", "name": name}, 600.0)

    async def stop(self, name: ServiceName) -> None:
        # A long timeout, because only the keeper knows how long the service's stop may take.
        await self._ask({"request": "stop", "name": name}, 600.0)

    async def status(self, name: ServiceName) -> ServiceStatus:
        return _status(await self._ask({"request": "status", "name": name}))

    async def processes(self) -> Mapping[ServiceName, int]:
        services = (await self._ask({"request": "list"}))["services"]
        return {ServiceName(name): status["pid"] for name, status in services.items() if status["pid"] is not None}

    async def restarts(self) -> Mapping[ServiceName, int]:
        services = (await self._ask({"request": "list"}))["services"]
        return {ServiceName(name): status["restarts"] for name, status in services.items()}

    async def names(self) -> frozenset[ServiceName]:
        """Every service that any core has ensured and not stopped."""
        return frozenset((await self._ask({"request": "list"}))["services"])

    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        if not self._joins:
            await self._replace_older()
        request = {"request": "join", "group": group, "limits": None if limits is None else asdict(limits)}
        return (*_JOIN, str(self._folders.keeper_socket), json.dumps(request))

    async def _replace_older(self) -> None:
        """End the keeper of an older release, which cannot be joined and keeps running after an update. It leaves its
        services running, and the next keeper adopts them."""
        listed = await self._ask({"request": "list"})
        if not listed.get("joins"):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(listed["pid"])
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                    with trio.move_on_after(_ANSWERS_WITHIN):
                        await trio.lowlevel.wait_readable(descriptor)
                finally:
                    os.close(descriptor)
            await self._start()
        self._joins = True

    async def keeper_pid(self) -> int:
        """The pid of the keeper itself."""
        return int((await self._ask({"request": "list"}))["pid"])

    async def watch(self) -> None:
        """Keep a keeper running for as long as this runs: when one ends, start the next at once."""
        while True:
            with suppress(FileNotFoundError, ConnectionError, trio.BrokenResourceError):
                async with await trio.open_unix_socket(self._folders.keeper_socket) as stream:
                    # No request is sent: this only waits for the end of the connection, which is the keeper's end.
                    await stream.receive_some()
            await self._start()

    async def _ask(self, request: dict[str, Any], longer: float = 0.0) -> Any:
        """A request whose connection breaks is sent again: every request may be repeated."""
        line = json.dumps(request).encode() + b"\n"
        with trio.move_on_after(_ANSWERS_WITHIN + longer):
            while True:
                try:
                    reply = await self._exchange(line)
                except (FileNotFoundError, ConnectionError, trio.BrokenResourceError, EOFError):
                    await self._start()
                    continue
                if "error" in reply:
                    raise LauncherError(reply["error"])
                return reply["answer"]
        raise LauncherError(f"The keeper at {self._folders.keeper_socket} did not answer in time; ask for it again.")

    async def _exchange(self, line: bytes) -> dict[str, Any]:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            await connection.connect(str(self._folders.keeper_socket))
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != 0:
                raise LauncherError(f"{self._folders.keeper_socket} is answered by uid {uid}, which is not the keeper.")
            stream = trio.SocketStream(connection)
            await stream.send_all(line)
            received = bytearray()
            while not received.endswith(b"\n"):
                chunk = await stream.receive_some()
                received += chunk
                if not chunk or len(received) > _LARGEST:
                    raise EOFError
            reply: dict[str, Any] = json.loads(received)
            return reply

    async def _start(self) -> None:
        """Start a keeper in a session of its own, so that it does not end with the core; returns once one answers,
        which may be an older one."""
        async with self._starting:
            if await self._answers():
                return
            log = self._folders.keeper_log
            log.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            with log.open("ab") as errors:
                # The keeper is not awaited, because it must outlive the core. If it ends earlier, it is reaped when the
                # next one is started.
                self._started = await trio.lowlevel.open_process(
                    [*PROGRAM, str(self._folders.data)],
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            with trio.move_on_after(_STARTS_WITHIN):
                while not await self._answers():
                    # Another process may have started a keeper at the same time, which will answer soon.
                    if self._started.poll() not in (None, ANOTHER) and not await self._answers():
                        raise LauncherError(f"The keeper ended as soon as it was started; {log} says why.")
                    await trio.sleep(_LOOK_AGAIN)
                return
            raise LauncherError(f"The keeper was started and does not answer; {log} may say why.")

    async def _answers(self) -> bool:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                await connection.connect(str(self._folders.keeper_socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return True


def wire(service: Service) -> dict[str, Any]:
    """The service as JSON that `keeper.definition.parse` reads."""
    fields = asdict(service)
    fields["environment"] = dict(service.environment)
    fields["log"] = None if service.log is None else str(service.log)
    fields["stop_signal"] = int(service.stop_signal)
    for listening in fields["sockets"]:
        listening["path"] = str(listening["path"])
    return fields


def _status(answer: dict[str, Any]) -> ServiceStatus:
    return ServiceStatus(
        running=answer["running"],
        pid=answer["pid"],
        since=None if answer["since"] is None else datetime.fromtimestamp(answer["since"], UTC),
        restarts=answer["restarts"],
        last_exit=answer["last_exit"],
        weaker_limits=tuple(answer["weaker_limits"]),
    )
