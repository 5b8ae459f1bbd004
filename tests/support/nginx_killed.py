"""Changes one site of a served tree, and is killed on the way: `python -m tests.support.nginx_killed STEP ...`.

Run by tests: the process that applies a change has to die for good, without any of its clean-up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Service, ServiceName, ServiceStatus
from svc_webhost.nginx import Generations, Ports, SiteServer, program
from svc_webhost.nginx.tree import Tree

STEPS: Final = ("writing", "testing", "switching", "switched", "reloading", "proving", "pruning")


@dataclass
class _ByPid:
    """A launcher for an nginx that somebody else has started."""

    pid: int

    async def ensure(self, service: Service) -> ServiceStatus:
        return await self.status(service.name)

    async def reload(self, name: ServiceName) -> None:
        os.kill(self.pid, signal.SIGHUP)

    async def stop(self, name: ServiceName) -> None:
        raise AssertionError("nginx runs, and is not stopped")

    async def status(self, name: ServiceName) -> ServiceStatus:
        return ServiceStatus(running=True, pid=self.pid)

    async def names(self) -> frozenset[ServiceName]:
        return frozenset()


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def work(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        _die()

    return work


def _arm(step: str) -> None:
    match step:
        case "writing":
            # The first file that did not change is linked, and nothing else is there yet.
            os.link = _then_die(os.link)
        case "testing":
            program.test = _die
        case "switching":
            # The new link is made, and not renamed yet.
            Path.replace = _die  # type: ignore[method-assign]
        case "switched":
            _ByPid.ensure = _die  # type: ignore[method-assign]
        case "reloading":
            _ByPid.reload = _killed_after_reload  # type: ignore[method-assign]
        case "proving":
            Generations._problems = _die  # type: ignore[method-assign]
        case "pruning":
            Tree.prune = _die  # type: ignore[method-assign]


async def _killed_after_reload(self: _ByPid, name: ServiceName) -> None:
    os.kill(self.pid, signal.SIGHUP)
    _die()


async def _main(*arguments: str) -> None:
    step, data, http, https, ipv6, pid, site = arguments
    ports = Ports(int(http), int(https), ipv6=ipv6 == "True")
    generations = Generations(HostFolders(Path(data)), _ByPid(int(pid)), ports)
    changed = SiteServer.model_validate_json(site)
    _arm(step)
    await generations.apply({changed.number: changed})


if __name__ == "__main__":
    trio.run(_main, *sys.argv[1:])
