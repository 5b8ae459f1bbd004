"""`tools/run --panel` as a newcomer types it: from nothing to a site that answers over HTTPS, and stopped again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support import port_taker
from tests.support.own_etc import copy_etc, with_etc
from tests.support.stack import BIN, ROOT, free_port

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PATIENCE = 280.0


@dataclass
class Newcomer:
    """Somebody with data and ports that nobody else has, and accounts that are none of this machine's."""

    folder: Path
    port: int

    def uid(self, account: str) -> str:
        lines = (line.split(":") for line in (self.folder / "etc" / "passwd").read_text().splitlines())
        return next(uid for name, _, uid, *_ in lines if name == account)

    async def runs(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        program = [str(BIN / "python"), str(ROOT / "tools" / "panel_demo.py")]
        program += ["--data", str(self.folder / "data"), "--port", str(self.port), *arguments]
        environment = dict(os.environ) | {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        with trio.fail_after(PATIENCE):
            return await trio.run_process(
                with_etc(self.folder / "etc", *program),
                env=environment,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )


@pytest.fixture
async def newcomer() -> AsyncIterator[Newcomer]:
    folder = Path(tempfile.mkdtemp(prefix="svc-panel-run-", dir="/var/tmp"))
    folder.chmod(0o755)
    await trio.to_thread.run_sync(copy_etc, folder / "etc")
    made = Newcomer(folder, free_port(row=7))  # The demonstration has the six after it, too.
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True, relative_deadline=120):
            await made.runs("--stop")
            await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))


async def port_while_web_is_killed(newcomer: Newcomer) -> dict[str, Any]:
    """What another user gets of the panel's port meanwhile."""
    taker = subprocess.Popen(
        (sys.executable, "-I", "-S", str(port_taker.__file__), str(newcomer.port)),
        user=65534,
        group=65534,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert taker.stdout is not None
    assert taker.stdout.readline() == "tries\n"
    of_web = ["pgrep", "-f", "-u", newcomer.uid("svc-web"), f"panel web --socket {newcomer.folder}"]
    [killed] = (await trio.run_process(of_web, capture_stdout=True)).stdout.split()
    os.kill(int(killed), signal.SIGKILL)
    with trio.fail_after(60):
        while (await trio.run_process(of_web, capture_stdout=True, check=False)).stdout.split() in ([], [killed]):
            await trio.sleep(0.1)  # It is started outside of this process.
    found: dict[str, Any] = json.loads(taker.communicate("")[0])
    return found


async def test_a_first_run_ends_with_a_site_that_answers_over_https(newcomer: Newcomer) -> None:
    first = await newcomer.runs("--detach")
    tried = await port_while_web_is_killed(newcomer)
    again = await newcomer.runs("--detach")
    stopped = await newcomer.runs("--stop")
    left = await trio.run_process(["pgrep", "-f", str(newcomer.folder)], capture_stdout=True, check=False)

    assert first.returncode == 0, first.stdout[-4000:]
    assert b"demo.example.com answers over HTTPS" in first.stdout
    assert b"it has WordPress and its certificate" in first.stdout
    assert b"password" in first.stdout
    # A tenant's program gets the panel's port in no family.
    assert tried["tried"] > 10
    assert tried["taken"] == []
    assert again.returncode == 0, again.stdout[-4000:]
    assert b"creating the site" not in again.stdout
    assert stopped.returncode == 0, stopped.stdout
    assert left.stdout.decode().split() == []


async def test_a_place_that_is_no_folder_is_refused_in_words(newcomer: Newcomer) -> None:
    (newcomer.folder / "data").write_text("somebody's own")

    refused = await newcomer.runs("--detach")

    assert b"is no folder" in refused.stdout
    assert b"Traceback" not in refused.stdout
    assert (newcomer.folder / "data").read_text() == "somebody's own"
