"""An operator's drills: the power of a server of the panel goes, and each of its programs dies by itself. Everything
that it serves is right again by itself, and who looks after the server can read what happened.

What a supervisor does on a server (systemd's units of core and web tier), a test does: it starts again the two that it
has killed, and nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from svc_webhost.launcher import ServiceName
from tests.support.figures import report_figure
from tests.system.panel.drills import APP, CHANGE, PAGE, PHP, POLL, DrilledPanel, drilled_panel

pytestmark = [pytest.mark.system, pytest.mark.isolated]

BACK_WITHIN = 180.0
"""A guard: it takes eleven seconds at most (docs/faults.md), and none is promised."""
"""Of a machine that does much else. docs/faults.md says what it takes."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrilledPanel]:
    with drilled_panel(tmp_path_factory.mktemp("sftp")) as drilled:
        yield drilled


@pytest.fixture
async def drilled(everything: DrilledPanel) -> DrilledPanel:
    """It is right, also after an earlier drill that failed half way, and no alert of one is open."""
    await everything.start()
    await everything.right(BACK_WITHIN)
    return everything


def told(what: str, seconds: float) -> None:
    report_figure(f"{what}: right again after {seconds:.1f} s")


async def test_after_a_power_cut_everything_is_served_again(drilled: DrilledPanel) -> None:
    before = await drilled.launcher.keeper_pid()

    await drilled.cut_power()
    assert len(await drilled.wrong()) == 8
    began = trio.current_time()
    await drilled.start()
    await drilled.right(BACK_WITHIN)
    told("power cut", trio.current_time() - began)

    assert await drilled.launcher.keeper_pid() != before
    assert await drilled.alerts() == []


@pytest.mark.parametrize("service", ["nginx", "mariadb", "postgresql", "knot", "sftp", "logs"])
async def test_a_program_of_the_server_that_is_killed_is_started_again(drilled: DrilledPanel, service: str) -> None:
    before = await drilled.kill(service)
    seconds = await drilled.right(BACK_WITHIN)
    told(service, seconds)

    assert await drilled.main_process(service) != before
    assert f"{service}: signal 9; it is started again" in await drilled.log("keeper")
    assert await drilled.alerts() == []


@pytest.mark.parametrize(("domain", "kind"), [(PHP, "php-"), (APP, "app-")])
async def test_a_program_of_a_site_that_is_killed_is_started_again(
    drilled: DrilledPanel, domain: str, kind: str
) -> None:
    service = drilled.service_of(domain, kind)
    before = await drilled.kill(service)
    seconds = await drilled.right(BACK_WITHIN)
    told(service, seconds)

    assert await drilled.main_process(service) != before
    assert f"{service}: signal 9; it is started again" in await drilled.log("keeper")
    assert await drilled.alerts() == []


async def test_operator_and_owner_are_told_once_of_an_application_that_ends_again_and_again(
    drilled: DrilledPanel,
) -> None:
    service = ServiceName(drilled.service_of(APP, "app-"))

    with trio.fail_after(2 * BACK_WITHIN):
        while not (alerts := await drilled.alerts()):
            if service in await drilled.launcher.processes():
                await drilled.kill(service)
            await trio.sleep(POLL)
        told = await drilled.told()
        await drilled.restart_application()
        while await drilled.alerts():
            await trio.sleep(POLL)

    assert alerts == [f"crashes:{service}"]
    assert len(told) == 1
    assert told[0].startswith("The application of app.example.com crashes repeatedly (signal 9)")
    await drilled.right(BACK_WITHIN)


async def test_the_keeper_that_is_killed_is_followed_by_one_that_has_ended_nothing(drilled: DrilledPanel) -> None:
    keeper, held = await drilled.launcher.keeper_pid(), await drilled.launcher.processes()

    os.kill(keeper, signal.SIGKILL)
    seconds = await drilled.right(BACK_WITHIN)
    with trio.fail_after(BACK_WITHIN):
        while not await drilled.keeper_answers():
            await trio.sleep(0.02)  # The core starts it.
    told("keeper", seconds)

    assert await drilled.launcher.keeper_pid() != keeper
    assert await drilled.launcher.processes() == held
    assert await drilled.alerts() == []


@pytest.mark.parametrize("tier", ["core", "web"])
async def test_core_and_web_tier_that_are_killed_take_nothing_along(drilled: DrilledPanel, tier: str) -> None:
    held = await drilled.launcher.processes()
    program = {"core": drilled.panel.core, "web": drilled.panel.web}[tier]

    await program.kill()
    served = [each for each in await drilled.wrong() if not each.startswith((CHANGE, PAGE))]
    program.start()
    seconds = await drilled.right(BACK_WITHIN)
    told(tier, seconds)

    assert served == []
    assert await drilled.launcher.processes() == held
    assert await drilled.alerts() == []


async def test_the_panels_own_postgresql_that_is_killed_is_started_again_and_no_site_notices(
    drilled: DrilledPanel,
) -> None:
    before = drilled.postmaster

    os.kill(before, signal.SIGKILL)
    meanwhile = [each for each in await drilled.wrong() if not each.startswith((CHANGE, PAGE))]
    seconds = await drilled.right(BACK_WITHIN)
    told("the panel's PostgreSQL", seconds)

    assert meanwhile == []
    assert drilled.postmaster not in (0, before)
    assert "postgres.ended" in drilled.panel.core.log.read_text()
    assert drilled.panel.core.running()
    assert await drilled.alerts() == []
