"""The certificate of the panel's own port: self-signed at first, then by ACME, or the operator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio
from cryptography import x509

from svc.panel.services import PanelLoop
from svc_actors.certificates import AcmeSettings, names_of
from svc_actors.store import Database
from svc_webhost.folders import HostFolders
from tests.support.acme_authority import DIRECTORY, FakeAuthority
from tests.support.certificates import self_signed
from tests.support.panel import open_panel, recorded_host

ACME = AcmeSettings("ops@example.com", (), terms_agreed=True, directory=DIRECTORY)


LOOPS: Final[tuple[PanelLoop, ...]] = ("certificate of the panel", "certificates of sites", "web server")


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.service.panel.own_certificate.LOOK_SECONDS", 0.02)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    return HostFolders(tmp_path).shown_certificate


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():
            await trio.sleep(0.01)  # What looks after the certificate is another task.


def names_in(file: Path) -> list[str]:
    return names_of(x509.load_pem_x509_certificate(file.read_bytes()))


async def alerts(database: Database) -> list[str]:
    rows = await database.fetch("SELECT message FROM alerts WHERE key LIKE 'certificate%' AND closed_at IS NULL")
    return [row["message"] for row in rows]


async def test_it_comes_by_acme_for_the_panels_name_and_goes_when_that_is_taken_away(
    panel_database: Database, tmp_path: Path, shown: Path
) -> None:
    host = replace(recorded_host(), open_acme=FakeAuthority().client)
    async with open_panel(panel_database, tmp_path, host, acme=ACME, loops=LOOPS):
        await until(shown.exists)
        names, mode = names_in(shown), shown.stat().st_mode & 0o777

    async with open_panel(panel_database, tmp_path, loops=LOOPS):
        await until(lambda: not shown.exists())
        orders = await panel_database.fetch("SELECT name FROM acme_certificates")

    assert names == ["panel.test"]
    assert mode == 0o640, "the web tier reads it, and nobody else"
    assert orders == []


async def test_a_core_that_starts_again_shows_it_without_asking_for_another(
    panel_database: Database, tmp_path: Path, shown: Path
) -> None:
    authority = FakeAuthority()
    host = replace(recorded_host(), open_acme=authority.client)
    async with open_panel(panel_database, tmp_path, host, acme=ACME, loops=LOOPS):
        await until(shown.exists)
    first = shown.read_bytes()
    shown.unlink()

    async with open_panel(panel_database, tmp_path, host, acme=ACME, loops=LOOPS):
        await until(shown.exists)

    assert shown.read_bytes() == first
    assert authority.count("neworder") == 1


async def test_the_operators_files_go_before_acme_and_are_taken_up_when_they_change(
    panel_database: Database, tmp_path: Path, shown: Path
) -> None:
    authority, mine = FakeAuthority(), tmp_path / "mine"
    mine.mkdir()
    files = self_signed(mine, ["panel.test"])
    host = replace(recorded_host(), open_acme=authority.client)
    own = (files.certificate, files.key)
    async with open_panel(panel_database, tmp_path, host, acme=ACME, certificate=own, loops=LOOPS):
        await until(shown.exists)
        first = shown.read_bytes()
        self_signed(mine, ["panel.test", "other.test"])
        await until(lambda: shown.read_bytes() != first)
        renewed = names_in(shown)
        second, key = shown.read_bytes(), files.key.read_bytes()
        files.key.write_text("no key")
        with trio.fail_after(60):
            while not any("not in PEM" in each for each in await alerts(panel_database)):
                await trio.sleep(0.01)
        kept = shown.read_bytes()
        files.key.write_bytes(key)
        with trio.fail_after(60):
            while any("not in PEM" in each for each in await alerts(panel_database)):
                await trio.sleep(0.01)

    assert renewed == ["panel.test", "other.test"]
    assert kept == second, "the previous certificate stays in use"
    assert authority.count("neworder") == 0


async def test_files_for_another_name_are_shown_and_told_of(
    panel_database: Database, tmp_path: Path, shown: Path
) -> None:
    files = self_signed(tmp_path, ["elsewhere.test"])
    async with open_panel(
        panel_database,
        tmp_path,
        certificate=(files.certificate, files.key),
        loops=LOOPS,
    ):
        with trio.fail_after(60):
            while not (found := await alerts(panel_database)):
                await trio.sleep(0.01)

    assert names_in(shown) == ["elsewhere.test"]
    assert "is not for panel.test, but for elsewhere.test" in found[0]
