"""What goes wrong with a change, and what the visitors of the other sites see of it: nothing."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from svc_actors.panel.web_server import WebServer
from svc_actors.store import Database
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError
from svc_webhost.log_writer import LARGEST
from svc_webhost.nginx import Certificate, NginxError, SiteServer, program
from tests.support.launchers import until
from tests.support.nginx import FIRST, Sites, nginx_sites
from tests.support.nginx_killed import STEPS

pytestmark = [pytest.mark.system, pytest.mark.isolated]

CHANGED = FIRST
OTHERS = range(FIRST + 1, FIRST + 11)


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


def _with(certificate: Certificate, **changed: str) -> Certificate:
    return certificate.model_copy(update=changed)


async def _serve_eleven(nginx: Sites) -> list[SiteServer]:
    """Gives the ten that nobody changes."""
    others = [nginx.site(number) for number in OTHERS]
    assert await nginx.generations.start([nginx.site(CHANGED), *others]) == {}
    return others


async def _consistent(nginx: Sites) -> bool:
    """nginx serves the generation that it would start with."""
    current = int((nginx.folders.nginx / "current").readlink().name)
    return await program.served_generation(nginx.folders) == current


@pytest.mark.parametrize("broken", ["no certificate", "no key", "another key", "not a certificate"])
async def test_a_broken_site_stays_as_it_was_and_a_sound_one_beside_it_is_changed(nginx: Sites, broken: str) -> None:
    others = await _serve_eleven(nginx)
    sound = nginx.certificate("sound")
    garbage = nginx.folders.certificates / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    certificate = {
        "no certificate": _with(sound, chain="/nowhere/chain.pem"),
        "no key": _with(sound, key="/nowhere/key.pem"),
        "another key": _with(sound, key=nginx.certificate("other").key),
        "not a certificate": _with(sound, chain=str(garbage)),
    }[broken]

    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply(
            {
                CHANGED: nginx.site(CHANGED, certificate=certificate, aliases=("new.example",)),
                1050: nginx.site(1050),
                1051: nginx.site(1051, certificate=sound),
            }
        )

    assert problems == []
    assert list(refused) == [CHANGED]
    assert refused[CHANGED]
    assert str(nginx.folders.data) not in refused[CHANGED]
    assert (await nginx.visit("site1001.example")).text == "page of 1001"
    with pytest.raises(httpx.RemoteProtocolError):
        await nginx.visit("new.example")
    assert (await nginx.visit("site1050.example")).text == "page of 1050"
    assert (await nginx.visit_tls("site1051.example")).text == "page of 1051"
    assert await _consistent(nginx)


async def test_of_a_hundred_changes_the_broken_ones_are_found(nginx: Sites) -> None:
    others = await _serve_eleven(nginx)
    sound = nginx.certificate("sound")
    bad = {1117, 1142, 1143, 1199}
    changes = {
        number: nginx.site(number, certificate=_with(sound, key="/nowhere/key.pem") if number in bad else None)
        for number in range(1100, 1200)
    }

    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply(changes)

    assert problems == []
    assert set(refused) == bad
    assert (await nginx.visit("site1150.example")).text == "page of 1150"
    assert nginx.launcher.reloads == 1


async def test_a_name_that_another_site_has_is_refused(nginx: Sites) -> None:
    await _serve_eleven(nginx)

    refused = await nginx.generations.apply({CHANGED: nginx.site(CHANGED, aliases=("site1002.example",))})

    assert refused == {CHANGED: "another site answers for site1002.example"}
    assert (await nginx.visit("site1002.example")).text == "page of 1002"


def _lose_logs(nginx: Sites, _: Certificate) -> None:
    shutil.rmtree(nginx.folders.site_logs / f"s{CHANGED}")


def _lose_certificate(_: Sites, certificate: Certificate) -> None:
    Path(certificate.chain).unlink()


def _damage_key(_: Sites, certificate: Certificate) -> None:
    Path(certificate.key).write_text("nothing")


@pytest.mark.parametrize("harm", [_lose_logs, _lose_certificate, _damage_key])
async def test_a_reload_that_nginx_refuses_after_the_test_ends_on_the_old_generation(
    nginx: Sites, harm: object
) -> None:
    others = await _serve_eleven(nginx)
    certificate = nginx.certificate("own")
    assert callable(harm)

    def once() -> None:
        nginx.launcher.before_reload = lambda: None
        harm(nginx, certificate)

    nginx.launcher.before_reload = once
    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply({CHANGED: nginx.site(CHANGED, certificate=certificate)})

    assert problems == []
    assert list(refused) == [CHANGED]
    with pytest.raises(ssl.SSLError):
        await nginx.shown("site1001.example")
    assert (await nginx.visit("site1001.example")).text == "page of 1001"
    assert await _consistent(nginx)


async def test_a_site_that_shows_another_certificate_than_it_was_given_is_taken_back(nginx: Sites) -> None:
    others = await _serve_eleven(nginx)
    certificate, other = nginx.certificate("own"), nginx.certificate("other")

    def exchange() -> None:
        shutil.copy(other.chain, certificate.chain)
        shutil.copy(other.key, certificate.key)

    nginx.launcher.before_reload = exchange
    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply({CHANGED: nginx.site(CHANGED, certificate=certificate)})

    assert problems == []
    assert refused == {CHANGED: "site1001.example presents another certificate"}
    with pytest.raises(ssl.SSLError):
        await nginx.shown("site1001.example")
    assert await _consistent(nginx)


async def test_a_reload_that_cannot_be_asked_for_changes_nothing(nginx: Sites) -> None:
    others = await _serve_eleven(nginx)

    def fail() -> None:
        nginx.launcher.before_reload = lambda: None
        raise LauncherError("the keeper does not answer")

    nginx.launcher.before_reload = fail
    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply({1050: nginx.site(1050)})

    assert problems == []
    assert refused == {1050: "the keeper does not answer"}
    assert await _consistent(nginx)


async def test_a_full_disk_changes_nothing(nginx: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    others = await _serve_eleven(nginx)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svc_webhost.nginx.tree.sync_folder", full)
    with pytest.raises(NginxError, match="No space left on device"):
        await nginx.generations.apply({1050: nginx.site(1050)})
    monkeypatch.undo()

    assert await _consistent(nginx)
    assert await nginx.generations.apply({1050: nginx.site(1050)}) == {}
    assert (await nginx.visit(others[0].domain)).text == "page of 1002"


async def test_a_site_that_broke_by_itself_stops_nobody_else(nginx: Sites) -> None:
    certificate = nginx.certificate("own")
    others = [nginx.site(number) for number in OTHERS]
    await nginx.generations.start([nginx.site(CHANGED, certificate=certificate), *others])
    Path(certificate.key).unlink()

    async with nginx.watched(others) as problems:
        refused = await nginx.generations.apply({1050: nginx.site(1050)})

    assert problems == []
    assert list(refused) == [CHANGED]
    assert (await nginx.visit("site1050.example")).text == "page of 1050"


async def test_a_site_that_broke_while_nginx_was_down_does_not_keep_it_down(nginx: Sites) -> None:
    certificate = nginx.certificate("own")
    sites = [nginx.site(CHANGED, certificate=certificate), *(nginx.site(number) for number in OTHERS)]
    await nginx.generations.start(sites)
    await nginx.launcher.stop(program.NGINX)
    Path(certificate.key).unlink()

    refused = await nginx.again().start(sites)

    assert list(refused) == [CHANGED]
    assert (await nginx.visit("site1002.example")).text == "page of 1002"
    assert await _consistent(nginx)


async def test_after_a_kill_of_nginx_it_starts_with_what_was_served(nginx: Sites) -> None:
    await _serve_eleven(nginx)
    nginx.launcher.end(program.NGINX)

    await nginx.again().apply({1050: nginx.site(1050)})

    assert (await nginx.visit("site1002.example")).text == "page of 1002"
    assert (await nginx.visit("site1050.example")).text == "page of 1050"


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_leaves_one_whole_generation_and_the_next_start_mends_the_rest(
    nginx: Sites, step: str
) -> None:
    others = await _serve_eleven(nginx)
    wanted = nginx.site(CHANGED, aliases=("new.example",), certificate=nginx.certificate("own"))
    ports = nginx.ports
    arguments = (nginx.folders.data, ports.http, ports.https, ports.ipv6, nginx.master, wanted.model_dump_json())
    command = [sys.executable, "-m", "tests.support.nginx_killed", step, *map(str, arguments)]

    async with nginx.watched(others) as problems:
        killed = await trio.run_process(command, check=False, stdout=subprocess.DEVNULL, capture_stderr=True)

    assert (killed.returncode, killed.stderr) == (-9, b"")
    assert problems == []
    assert (await nginx.visit("site1001.example")).text == "page of 1001"

    # What is on disk starts by itself, also when nginx went down together with the panel.
    nginx.launcher.end(program.NGINX)
    await nginx.launcher.ensure(nginx.launcher.services[program.NGINX])
    with trio.fail_after(30):
        while await program.served_generation(nginx.folders) is None:
            await trio.sleep(0.01)
    for other in (nginx.site(CHANGED), *others):
        assert (await nginx.visit(other.domain)).text == f"page of {other.number}"

    async with nginx.watched(others) as problems:
        refused = await nginx.again().start([wanted, *others])

    assert (refused, problems) == ({}, [])
    assert (await nginx.visit("new.example")).text == "page of 1001"
    assert (await nginx.visit_tls("new.example")).text == "page of 1001"
    assert await _consistent(nginx)


async def test_a_late_answer_of_a_worker_that_ends_takes_no_change_back(
    nginx: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy server a worker of the generation before may not have heard yet that it is to end."""
    await nginx.generations.start([nginx.site(1001)])
    before = await program.served_generation(nginx.folders)
    await nginx.generations.apply({1002: nginx.site(1002)})
    asked = program.served_generation
    late = iter([before])

    async def answers(folders: HostFolders) -> int | None:
        return next(late, None) or await asked(folders)

    monkeypatch.setattr(program, "served_generation", answers)
    await nginx.generations.apply({1003: nginx.site(1003)})

    pages = [(await nginx.visit(f"site{number}.example")).text for number in (1001, 1002, 1003)]
    assert pages == ["page of 1001", "page of 1002", "page of 1003"]
    assert await _consistent(nginx)


async def test_an_nginx_that_was_stopped_is_started_again_while_nobody_changes_anything(
    nginx: Sites, panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.web_server.LOOK_SECONDS", 0.1)

    async def wanted() -> tuple[tuple[SiteServer, ...], dict[int, str]]:
        return (nginx.site(1001),), {}

    async def served() -> bool:
        running = (await nginx.launcher.status(program.NGINX)).running
        return running and await program.served_generation(nginx.folders) is not None

    server = WebServer(panel_database, nginx.generations, wanted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await server.change({1002: nginx.site(1002)})
        generation = await program.served_generation(nginx.folders)

        await nginx.launcher.stop(program.NGINX)

        await until(served)
        pages = [(await nginx.visit(f"site{number}.example")).text for number in (1001, 1002)]
        nursery.cancel_scope.cancel()

    assert pages == ["page of 1001", "page of 1002"]
    assert await program.served_generation(nginx.folders) == generation


async def test_logs_whose_reload_failed_are_begun_anew_at_the_next_look(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001)])
    log = nginx.folders.site_logs / "s1001" / "access.log"
    with log.open("r+b") as file:
        file.truncate(LARGEST)

    def fail() -> None:
        nginx.launcher.before_reload = lambda: None
        raise LauncherError("the keeper does not answer")

    nginx.launcher.before_reload = fail
    with pytest.raises(NginxError, match="keeper"):
        await nginx.generations.rotate_logs()
    left = log.exists()

    again = await nginx.generations.rotate_logs()
    await nginx.visit("site1001.example", "/after")

    assert not left
    assert again == 1
    assert "/after" in log.read_text()
    assert await nginx.generations.rotate_logs() == 0
