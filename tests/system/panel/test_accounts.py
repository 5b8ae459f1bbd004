"""The accounts of sites on a real server: what their own processes and other accounts try against a deletion."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_webhost import accounts
from svc_webhost.accounts import SiteAccount, SystemAccounts
from svc_webhost.folders import HostFolders

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SITE = SiteAccount(9_461_001)
"""Far above what any server has, and without an entry in /etc/passwd."""

DEFENDING = """
import os, signal
os.write(1, b".")
while True:
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        pass
"""
"""Stops every other process of its account, all the time."""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(accounts, "_SHARED_FOLDERS", (folder,))
    return folder


async def test_a_process_that_stops_whatever_would_end_it_is_ended(tmp_path: Path) -> None:
    command = ["/usr/bin/python3", "-c", DEFENDING]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, user=SITE.uid, group=SITE.uid, extra_groups=(), cwd="/"
    ) as defending:
        try:
            assert defending.stdout is not None
            assert defending.stdout.read(1) == b"."

            await SystemAccounts(HostFolders(tmp_path)).end_processes(SITE)

            assert defending.wait(10) == -signal.SIGKILL
        finally:
            defending.kill()


async def test_what_another_account_runs_with_the_rights_of_a_site_is_ended(tmp_path: Path) -> None:
    """As a set-uid program of the site's does, which gives up its saved user id."""
    program = "import os, signal, sys; os.setresuid(*map(int, sys.argv[1:])); os.write(1, b'.'); signal.pause()"
    ids = (str(61_001), str(SITE.uid), str(61_001))
    with subprocess.Popen(["/usr/bin/python3", "-c", program, *ids], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.read(1) == b"."

            await SystemAccounts(HostFolders(tmp_path)).end_processes(SITE)

            assert running.wait(10) == -signal.SIGKILL
        finally:
            running.kill()


async def test_a_file_of_anybody_that_vanishes_meanwhile_keeps_no_deletion_from_going_on(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing, left = shared / "a-passing-file", shared / "left-by-the-site"
    vanishing.touch()
    left.touch()
    os.chown(left, SITE.uid, SITE.uid)
    scandir = os.scandir

    def scan(folder: Path) -> Iterator[os.DirEntry[str]]:
        with scandir(folder) as entries:
            found = list(entries)
        vanishing.unlink()
        return iter(found)

    monkeypatch.setattr(os, "scandir", scan)

    await SystemAccounts(HostFolders(tmp_path)).remove(SITE)

    assert not left.exists()


def test_the_id_of_an_account_is_no_subordinate_id_of_another() -> None:
    words = (line.split() for line in Path("/etc/login.defs").read_text().splitlines())
    settings = {line[0]: line[1] for line in words if len(line) == 2}

    assert SiteAccount(1001).uid > int(settings["SUB_UID_MAX"])
    assert SiteAccount(1001).uid > int(settings["SUB_GID_MAX"])
