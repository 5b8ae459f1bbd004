"""`svc controller check`, before a controller runs here and while one does."""

from __future__ import annotations

import socket
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
import trio

from svc.cli import check
from svc.cli.check import acme_findings
from svc.cli.failures import Exit
from svc_actors.certificates import AcmeSettings
from svc_http.plain import NO_CHALLENGE
from tests.cli.conftest import House, Terminal
from tests.support.acme_authority import DIRECTORY, FakeAuthority
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
    assert "the first start creates it" in line(ended.out, "data")
    assert "was not renewed" in line(ended.out, "certificate"), "it ends tomorrow"
    assert "SVC_DATABASE_OWNER_URL is not set" in line(ended.out, "roles")
    assert not (tmp_path / "data").exists(), "nothing was changed"


async def test_where_every_address_is_asked_for_the_ports_of_both_families_are_looked_at(
    terminal: Terminal, tmp_path: Path, database_url: str
) -> None:
    port = str(free_port())
    with socket.create_server(("127.0.0.1", int(port))):
        ended = await terminal.svc(
            *options(tmp_path, "--bind", "::", "--api-port", port), SVC_DATABASE_URL=database_url
        )

    found = [each for each in ended.out.splitlines() if "API port" in each or "gateway port" in each]
    assert [each.split()[0] for each in found] == ["failed", "ok", "ok", "ok"]
    assert f"0.0.0.0:{port} cannot be listened on" in found[0]
    assert f"[::]:{port} is free" in found[1]


@pytest.mark.usefixtures("hurried")
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


@pytest.fixture
async def directory(monkeypatch: pytest.MonkeyPatch) -> FakeAuthority:
    """An authority that `check` reaches at whatever URL."""
    authority = FakeAuthority()
    monkeypatch.setattr(check, "open_http", lambda acme: authority.client())
    return authority


def by_acme(*further: str) -> tuple[str, ...]:
    return ("--acme-contact", "ops@provider.example", "--acme-directory", DIRECTORY, *further)


async def test_terms_that_are_not_agreed_to_are_told_with_where_they_are(
    terminal: Terminal, tmp_path: Path, directory: FakeAuthority
) -> None:
    ended = await terminal.svc(*options(tmp_path, *by_acme("--acme-name", "localhost")))

    assert line(ended.out, "ACME").startswith("warning")
    assert "read https://authority.test/terms, then set terms-agreed = true" in line(ended.out, "ACME")
    assert directory.asked == ["directory"], "nothing was ordered"


async def test_a_name_without_an_address_and_a_port_that_is_taken_are_found(
    terminal: Terminal, tmp_path: Path, directory: FakeAuthority
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        given = by_acme("--acme-terms-agreed", "yes", "--acme-name", "absent.invalid", "--acme-port", port)

        ended = await terminal.svc(*options(tmp_path, *given))

    assert line(ended.out, "ACME").startswith("ok")
    assert "absent.invalid has no address in the DNS" in line(ended.out, "name")
    assert line(ended.out, "port for ACME").startswith("failed")


async def test_an_authority_that_wants_an_account_of_its_own_is_told(
    terminal: Terminal, tmp_path: Path, directory: FakeAuthority
) -> None:
    directory.external["customer-1"] = b"key"

    ended = await terminal.svc(*options(tmp_path, *by_acme("--acme-terms-agreed", "yes", "--acme-name", "localhost")))

    assert "set eab-key-id and eab-key-file" in line(ended.out, "ACME")


@pytest.mark.parametrize(
    ("others", "verdict", "words"),
    [
        (NO_CHALLENGE, "ok", "the controller answers at localhost"),
        ("<html>It works!", "warning", "another server answers"),
        (None, "warning", "cannot be reached from here"),
    ],
)
async def test_while_it_serves_port_80_of_the_name_is_asked_as_the_authority_does(
    directory: FakeAuthority,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    others: str | None,
    verdict: str,
    words: str,
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            text = others or ""
            head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            await stream.send_all((head + text).encode())

    port = free_port()
    monkeypatch.setattr(check, "HTTP_PORT", port)
    if others is not None:
        await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
    settings = AcmeSettings("ops@provider.example", ("localhost",), terms_agreed=True, directory=DIRECTORY)

    async with aclosing(acme_findings(settings, serving=True)) as findings:
        found = [each async for each in findings if each.about == "port 80"]

    assert [each.verdict.value for each in found] == [verdict]
    assert words in found[0].words
