"""A node without the programs that copies are made with says so, and what to install."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import preflight
from svc_nodeagent.hypervisor.backups import store
from svc_nodeagent.hypervisor.backups.reading import serve_disk
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.programs import ENVIRONMENT
from svc_nodeagent.protocol import CheckStatus, FailureCode

SLOW_SERVER = """#!/usr/bin/python3
import signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
[address] = [word.partition("=")[2] for word in sys.argv if word.startswith("--socket=")]
listening = socket.socket(socket.AF_UNIX)
listening.bind(address)
time.sleep(0.3)
listening.listen()
while True:
    listening.accept()
"""
"""What qemu-nbd is on a busy node: its socket is there some time before it listens."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs that the node has, with both in it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in store.PACKAGES:
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(store, "ENVIRONMENT", {"PATH": str(folder)})
    return folder


@pytest.mark.parametrize(("program", "package"), [("restic", "restic"), ("nbdcopy", "libnbd-bin")])
async def test_a_missing_program_is_named_with_its_package(
    programs: Path, tmp_path: Path, program: str, package: str
) -> None:
    (programs / program).unlink()
    check = await preflight._backups(Folders(tmp_path))
    assert check.status is CheckStatus.WARNING
    assert f"Not installed: {program}. No machine can be backed up here: install {package}." in check.message
    backups = store.store_at(tmp_path, uuid4(), "key", None)
    for order in (backups.prepare, backups.unlock):
        with pytest.raises(HostError, match=f"not installed: {program}") as refused:
            await order()
        assert (refused.value.code, refused.value.hint) == (FailureCode.CONFLICT, f"Install on the node: {package}.")


async def test_a_node_with_both_says_where_its_copies_go(programs: Path, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    without = await preflight._backups(folders)
    assert (without.status, "once a target is mounted" in without.message) == (CheckStatus.PASSED, True)
    folders.backups.mkdir(parents=True)
    ready = await preflight._backups(folders)
    assert (ready.status, str(folders.backups) in ready.message) == (CheckStatus.PASSED, True)


async def test_a_disk_is_read_when_its_server_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, address = tmp_path / "qemu-nbd", tmp_path / "socket"
    server.write_text(SLOW_SERVER)
    server.chmod(0o755)
    monkeypatch.setitem(ENVIRONMENT, "PATH", str(tmp_path))

    async with serve_disk(tmp_path / "disk-0.qcow2", address):
        await (await trio.open_unix_socket(str(address))).aclose()
