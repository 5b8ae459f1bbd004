"""Releases of applications, by a launcher that takes as long as a test wants."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from svc_webhost.accounts import SiteAccount
from svc_webhost.apps import App, AppError, AppInterface, AppReleases, AppRuntime
from svc_webhost.apps import releases as app_releases
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, Limits, Service, ServiceName, ServiceStatus
from tests.support.panel import RecordedLauncher

APP = App(
    account=SiteAccount(1001),
    release=3,
    domain="app.example",
    runtime=AppRuntime.PYTHON,
    interface=AppInterface.WSGI,
    entry="app:application",
    folder="",
    health_path="/",
    limits=Limits(),
)


@dataclass
class SlowLauncher(RecordedLauncher):
    """What it stops is gone at once, and it says so when it may."""

    may_end: trio.Event = field(default_factory=trio.Event)

    async def stop(self, name: ServiceName) -> None:
        await super().stop(name)
        await self.may_end.wait()


@dataclass
class HangingLauncher(RecordedLauncher):
    """It starts what it is told, and does not say how it is."""

    async def status(self, name: ServiceName) -> ServiceStatus:
        raise LauncherError("systemctl show failed: no answer in time.")

    async def ensure(self, service: Service) -> ServiceStatus:
        self.services[service.name] = service
        return ServiceStatus(running=True)

    async def names(self) -> frozenset[ServiceName]:
        return frozenset(self.services)


async def test_of_a_release_whose_launcher_does_not_answer_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteAccount, "uid", property(lambda _: os.geteuid()))
    launcher = HangingLauncher()
    releases = AppReleases(HostFolders(tmp_path), launcher)
    with pytest.raises(AppError, match="no answer in time"):
        await releases.start(APP, {})
    assert await releases.running() == {}


async def test_a_release_for_which_the_disk_has_no_room_is_refused_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SiteAccount, "uid", property(lambda _: os.geteuid()))
    monkeypatch.setattr(app_releases, "write_variables", full)
    releases = AppReleases(HostFolders(tmp_path), RecordedLauncher())
    for begin in (releases.start, releases.hold):
        with pytest.raises(AppError, match="No space left on device"):
            await begin(APP, {})
    assert await releases.running() == {}


async def test_one_that_is_wanted_again_while_it_is_stopped_has_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A release without them does not start, and its socket, which is held, keeps visitors waiting for ever."""
    monkeypatch.setattr(SiteAccount, "uid", property(lambda _: os.geteuid()))
    monkeypatch.setattr(app_releases, "_DRAINED_WITHIN", 0)
    launcher, app = SlowLauncher(), APP
    releases = AppReleases(HostFolders(tmp_path), launcher)
    await releases.hold(app, {"COLOUR": "blue"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(releases.stop, app)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(releases.hold, app, {"COLOUR": "green"})
        await trio.testing.wait_all_tasks_blocked()
        launcher.may_end.set()

    assert await releases.running() == {1001: {3}}
    kept = json.loads((HostFolders(tmp_path).apps / "s1001-3.variables").read_text())
    assert kept == {"COLOUR": "green"}
