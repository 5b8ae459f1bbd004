"""A launcher for tests: programs that run as children of the test, in the foreground, and end with it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from svc_webhost.launcher import LauncherError, Service, ServiceName, ServiceStatus


@dataclass
class ChildLauncher:
    """Nothing is started again by itself: a test says what happens to its programs."""

    running: dict[ServiceName, tuple[Service, trio.Process]] = field(default_factory=dict)

    async def ensure(self, service: Service) -> ServiceStatus:
        there = self.running.get(service.name)
        if there is not None:
            if there[0] == service and there[1].poll() is None:
                return await self.status(service.name)
            await self.stop(service.name)
        log = os.open(service.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if service.log is not None else None
        try:
            process = await trio.lowlevel.open_process(
                list(service.command), env=dict(service.environment), stdout=log, stderr=log
            )
        finally:
            if log is not None:
                os.close(log)
        self.running[service.name] = (service, process)
        return await self.status(service.name)

    async def reload(self, name: ServiceName) -> None:
        if name not in self.running:
            raise LauncherError(f"{name} does not run")
        self.running[name][1].send_signal(signal.SIGHUP)

    async def stop(self, name: ServiceName) -> None:
        there = self.running.pop(name, None)
        if there is None or there[1].poll() is not None:
            return
        there[1].send_signal(there[0].stop_signal)
        with trio.move_on_after(there[0].stop_seconds):
            await there[1].wait()
            return
        there[1].kill()
        await there[1].wait()

    async def names(self) -> frozenset[ServiceName]:
        return frozenset(self.running)

    async def kill(self, name: ServiceName) -> None:
        """Kill the program as a fault would, and leave it dead."""
        process = self.running[name][1]
        process.kill()
        await process.wait()

    async def status(self, name: ServiceName) -> ServiceStatus:
        there = self.running.get(name)
        return ServiceStatus(running=there is not None and there[1].poll() is None, pid=there[1].pid if there else None)


@asynccontextmanager
async def child_launcher() -> AsyncIterator[ChildLauncher]:
    launcher = ChildLauncher()
    try:
        yield launcher
    finally:
        with trio.CancelScope(shield=True):
            for name in list(launcher.running):
                await launcher.stop(name)
