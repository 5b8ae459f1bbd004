"""A master of php-fpm that nobody asks anything: it ends, and is there again for the next visitor."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.php import PhpMasters, Pool
from svc_webhost.php.fastcgi import ask
from svc_webhost.php.pool import socket_of
from svc_webhost.site_runtime import prepare_shared_sockets
from tests.support.launchers import Place, keeper_place, until

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = SiteAccount(9_471_001)
"""Far above what other servers in the same machine have."""
POOL = Pool(ADA, "8.2", worker_rest_seconds=1)


@dataclass
class Php:
    place: Place
    folders: HostFolders
    masters: PhpMasters

    async def visit(self, seconds: float = 0) -> str:
        page = str(self.folders.sites / ADA.name / "page.php")
        parameters = {"SCRIPT_FILENAME": page, "SCRIPT_NAME": "/page.php", "REQUEST_METHOD": "GET"}
        asked = {**parameters, "SERVER_PROTOCOL": "HTTP/1.1", "QUERY_STRING": f"seconds={seconds}"}
        return (await ask(socket_of(POOL, self.folders), asked)).decode().partition("\r\n\r\n")[2]

    async def running(self) -> bool:
        return POOL.service_name in await self.place.launcher.processes()


@pytest.fixture
async def php() -> AsyncIterator[Php]:
    async with keeper_place() as place:
        folders = HostFolders(place.folder)
        place.folder.chmod(0o711)
        prepare_shared_sockets(folders)
        for folder in (folders.sites / ADA.name, folders.sites / ADA.name / "tmp"):
            folder.mkdir(parents=True)
            os.chown(folder, ADA.uid, ADA.uid)
        code = "<?php usleep((int) ((float) $_GET['seconds'] * 1e6)); echo 'page of ', posix_getppid();"
        (folders.sites / ADA.name / "page.php").write_text(code)
        php = Php(place, folders, PhpMasters(folders, place.launcher))
        await php.masters.start(POOL)
        yield php


async def test_one_that_nobody_asks_ends_and_the_next_visitor_is_answered_by_another(php: Php) -> None:
    first = await php.visit()

    async def rested() -> bool:
        # Not before its worker has ended, of which it is seen to have been asked something.
        await php.masters.rest_idle(0.2)
        return not await php.running()

    await until(rested)
    answered = [await php.visit() for _ in range(3)]

    assert len(set(answered)) == 1
    assert answered[0].startswith("page of ")
    assert answered[0] != first
    assert await php.running()


async def test_one_that_answers_is_left_to_it(php: Php) -> None:
    answers: list[str] = []

    async def visit() -> None:
        answers.append(await php.visit(seconds=2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(visit)
        until_answered = time.monotonic() + 1
        while time.monotonic() < until_answered:
            await php.masters.rest_idle(0)
            await trio.sleep(0.1)
        still = await php.running()

    assert still
    assert answers == [answers[0]]
    assert answers[0].startswith("page of ")
