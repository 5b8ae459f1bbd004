"""Backups by SFTP, to an OpenSSH server of the test's own."""

from __future__ import annotations

import getpass
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from svc.service.controller.backup.places import PARTIAL, PlaceError, parse_place
from tests.support.stack import free_port

NAME = "svc-controller-20261122T023000Z.age"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="svc-sftp-") as path:
        yield Path(path)


@asynccontextmanager
async def ssh_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a server that takes one key. `sftp` of the environment takes its settings from a file of the test, in
    place of those in the account's home."""
    port = free_port()
    for name in ("host", "user"):
        await trio.run_process(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nSubsystem sftp internal-sftp\n"
    )
    host_key = (folder / "host.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "ssh_config").write_text(
        f"Host *\n IdentityFile {folder}/user\n UserKnownHostsFile {folder}/known_hosts\n IdentitiesOnly yes\n"
    )
    programs = folder / "bin"
    programs.mkdir()
    (programs / "sftp").write_text(f'#!/bin/sh\nexec {shutil.which("sftp")} -F {folder}/ssh_config "$@"\n')
    (programs / "sftp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    async with trio.open_nursery() as nursery:
        sshd = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        nursery.start_soon(partial(trio.run_process, sshd, capture_stderr=True))
        with trio.fail_after(60):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.05)  # it has just been started
        yield port
        nursery.cancel_scope.cancel()


async def test_an_archive_is_stored_whole_listed_fetched_and_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = folder / 'of "the" operator'
    remote.mkdir()
    (remote / f"svc-controller-20260101T000000Z.age{PARTIAL}").touch()
    (remote / "notes.txt").touch()
    archive = folder / "local"
    archive.write_bytes(b"age" * 100_000)
    async with ssh_server(folder, monkeypatch) as port:
        place = parse_place(f"sftp://{getpass.getuser()}@127.0.0.1:{port}{str(remote).replace(' ', '%20')}")

        await place.clear()
        await place.clear()
        await place.store(NAME, archive)

        assert await place.names() == [NAME]
        assert sorted(path.name for path in remote.iterdir()) == ["notes.txt", NAME]
        async with place.fetched(NAME) as fetched:
            assert fetched.read_bytes() == archive.read_bytes()
        await place.remove(NAME)
        assert await place.names() == []


async def test_a_host_whose_key_is_not_known_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ssh_server(folder, monkeypatch) as port:
        (folder / "known_hosts").write_text("")

        with pytest.raises(PlaceError, match="failed"):
            await parse_place(f"sftp://{getpass.getuser()}@127.0.0.1:{port}{folder}").names()


@pytest.mark.parametrize(
    "where", ["sftp://host", "sftp://-oProxyCommand=x/folder", "sftp://u:secret@host/folder", "s3://b"]
)
def test_a_place_that_is_none_is_refused_without_its_password(where: str) -> None:
    with pytest.raises(PlaceError) as refusal:
        parse_place(where)

    assert "secret" not in str(refusal.value)
