"""nginx as the keeper runs it: what becomes of its visitors when it, the keeper or the core is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.nginx import Generations, program
from tests.support.launchers import until
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@asynccontextmanager
async def kept() -> AsyncIterator[tuple[Sites, KeeperLauncher, Generations]]:
    with nginx_sites() as sites:
        launcher = KeeperLauncher(sites.folders)
        generations = Generations(sites.folders, launcher, sites.ports)
        try:
            yield sites, launcher, generations
        finally:
            with trio.CancelScope(shield=True, relative_deadline=60):
                await launcher.stop(program.NGINX)
                keeper = await launcher.keeper_pid()
                os.kill(keeper, signal.SIGTERM)


@pytest.fixture
async def nginx() -> AsyncIterator[tuple[Sites, KeeperLauncher, Generations]]:
    async with kept() as there:
        yield there


async def test_sites_are_served_changed_and_served_again_after_a_kill_of_nginx(
    nginx: tuple[Sites, KeeperLauncher, Generations],
) -> None:
    sites, launcher, generations = nginx
    await generations.start([sites.site(1001)])
    first = await launcher.status(program.NGINX)
    assert first.pid is not None

    await generations.apply({1002: sites.site(1002)})
    unchanged = await launcher.status(program.NGINX)
    os.kill(first.pid, signal.SIGKILL)

    async def started_again() -> bool:
        # The workers of the killed one answer until the keeper has ended them.
        if (await launcher.status(program.NGINX)).pid in (None, first.pid):
            return False
        return await program.served_generation(sites.folders) == 2

    await until(started_again)
    assert unchanged.pid == first.pid
    assert (await launcher.status(program.NGINX)).pid != first.pid
    assert (await sites.visit("site1002.example")).text == "page of 1002"


async def test_visitors_wait_while_nginx_is_replaced_and_none_is_refused(
    nginx: tuple[Sites, KeeperLauncher, Generations],
) -> None:
    sites, launcher, generations = nginx
    others = sites.sites(3)
    await generations.start(others)
    before = await launcher.status(program.NGINX)

    async with sites.watched(others) as problems:
        for _ in range(3):
            await launcher.restart(program.NGINX)
            await generations.apply({1050: sites.site(1050)})

    assert problems == []
    assert (await launcher.status(program.NGINX)).pid != before.pid


async def test_no_worker_hangs_over_a_connection_that_another_has_taken(
    nginx: tuple[Sites, KeeperLauncher, Generations],
) -> None:
    sites, launcher, generations = nginx

    await generations.start(sites.sites(1))

    master = (await launcher.status(program.NGINX)).pid
    listening = Path(f"/proc/{master}/fdinfo")
    sockets = [fd for fd in os.listdir(f"/proc/{master}/fd") if _is_socket(f"/proc/{master}/fd/{fd}")]
    flags = [line.split()[1] for fd in sockets for line in (listening / fd).open() if line.startswith("flags")]
    assert len(flags) >= 5
    assert all(int(flag, 8) & os.O_NONBLOCK for flag in flags)


def _is_socket(link: str) -> bool:
    return os.readlink(link).startswith("socket:")


async def test_a_killed_keeper_is_not_noticed_by_visitors_and_its_successor_reloads(
    nginx: tuple[Sites, KeeperLauncher, Generations],
) -> None:
    sites, launcher, generations = nginx
    others = sites.sites(3)
    await generations.start(others)
    before = await launcher.status(program.NGINX)

    async with sites.watched(others) as problems:
        os.kill(await launcher.keeper_pid(), signal.SIGKILL)
        refused = await generations.apply({1050: sites.site(1050)})

    assert (refused, problems) == ({}, [])
    assert (await launcher.status(program.NGINX)).pid == before.pid
    assert (await sites.visit("site1050.example")).text == "page of 1050"
