"""`svc controller check`, before a controller runs here and while one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli.failures import Exit
from tests.cli.conftest import House, Terminal
from tests.support.certificates import self_signed
from tests.support.stack import free_port


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def options(folder: Path, *further: str) -> tuple[str, ...]:
    ports = {name: str(free_port()) for name in ("--api-port", "--gateway-port", "--operations-port")}
    numbered = [part for pair in ports.items() for part in pair]
    return ("controller", "check", "--data", str(folder / "data"), "--bind", "127.0.0.1", *numbered, *further)


def line(out: str, about: str) -> str:
    [found] = [each for each in out.splitlines() if each[9:].startswith(about + ":")]
    return found


async def test_where_nothing_is_wrong_a_controller_can_be_started(
    terminal: Terminal, tmp_path: Path, database_url: str
) -> None:
    files = self_signed(tmp_path)
    own = ("--certificate", str(files.certificate), "--certificate-key", str(files.key), "--public-host", "localhost")

    ended = await terminal.svc(*options(tmp_path, *own), SVC_DATABASE_URL=database_url)

    assert ended.code == Exit.OK
    assert line(ended.out, "service").startswith("warning")
    assert line(ended.out, "database").startswith("ok")
    assert "is made at the first start" in line(ended.out, "data")
    assert "was not renewed" in line(ended.out, "certificate"), "it ends tomorrow"
    assert "SVC_DATABASE_OWNER_URL is not set" in line(ended.out, "roles")
    assert not (tmp_path / "data").exists(), "nothing was changed"


async def test_a_database_that_is_away_is_named_without_its_password(terminal: Terminal, tmp_path: Path) -> None:
    url = f"postgresql://svc:hunter2@127.0.0.1:{free_port()}/svc"

    ended = await terminal.svc(*options(tmp_path), SVC_DATABASE_URL=url)

    assert ended.code == Exit.NOT_READY
    assert line(ended.out, "database").startswith("failed")
    assert "127.0.0.1/svc does not answer" in ended.out
    assert "hunter2" not in ended.out + ended.err


async def test_a_port_that_is_taken_and_a_key_of_another_certificate_are_found(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    files, other = self_signed(tmp_path), self_signed(tmp_path / "other")
    mixed = ("--certificate", str(files.certificate), "--certificate-key", str(other.key))

    ended = await terminal.svc(*options(tmp_path, *mixed, "--bind", "192.0.2.1"))

    assert ended.code == Exit.NOT_READY
    assert line(ended.out, "certificate").startswith("failed")
    assert line(ended.out, "API port").startswith("failed")
    assert line(ended.out, "operations port").startswith("ok")


async def test_of_a_controller_that_runs_its_own_word_is_told(house: House) -> None:
    port = house.operations_url.rpartition(":")[2]

    ended = await house.svc("controller", "check", "--data", str(house.nodes.parent), "--operations-port", port)

    assert line(ended.out, "service").startswith("ok")
    assert "port:" not in ended.out, "its own ports are taken by itself"
