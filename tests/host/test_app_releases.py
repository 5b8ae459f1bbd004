"""Releases of applications, by a launcher that takes as long as a test wants."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.apps import App, AppInterface, AppReleases, AppRuntime
from svc_actors.host.apps import releases as app_releases
from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher import Limits, ServiceName
from tests.support.panel import RecordedLauncher


@dataclass
class SlowLauncher(RecordedLauncher):
    """What it stops is gone at once, and it says so when it may."""

    may_end: trio.Event = field(default_factory=trio.Event)

    async def stop(self, name: ServiceName) -> None:
        await super().stop(name)
        await self.may_end.wait()


async def test_one_that_is_wanted_again_while_it_is_stopped_has_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A release without them does not start, and its socket, which is held, keeps visitors waiting for ever."""
    monkeypatch.setattr(SiteAccount, "uid", property(lambda _: os.geteuid()))
    monkeypatch.setattr(app_releases, "_DRAINED_WITHIN", 0)
    account, launcher = SiteAccount(1001), SlowLauncher()
    app = App(
        account=account,
        release=3,
        domain="app.example",
        runtime=AppRuntime.PYTHON,
        interface=AppInterface.WSGI,
        entry="app:application",
        folder="",
        health_path="/",
        limits=Limits(),
    )
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
