"""`tools/run` as a newcomer types it: from nothing, after a run that failed, and after the machine was deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.support import host
from tests.support.image_paths import IMAGES
from tests.support.stack import BIN, ROOT, free_port

pytestmark = pytest.mark.system

PATIENCE = 280.0


@dataclass
class Newcomer:
    """Somebody with a home folder, and data, ports and names that no other service on this host has."""

    folder: Path
    port: int

    async def runs(self, *arguments: str, images: Path = IMAGES) -> subprocess.CompletedProcess[bytes]:
        command: list[str | Path]
        command = [BIN / "python", ROOT / "tools" / "demo.py", "--data", self.folder / "data", "--port", str(self.port)]
        return await self._run(*command, *arguments, SVC_IMAGES=str(images))

    async def svc(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return await self._run(BIN / "svc", *arguments)

    async def _run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
        environment = dict(os.environ) | {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)} | environment
        with trio.fail_after(PATIENCE):
            return await trio.run_process(
                command, env=environment, capture_stdout=True, stderr=subprocess.STDOUT, check=False
            )


@pytest.fixture
async def newcomer(demo_image: Path) -> AsyncIterator[Newcomer]:
    folder = Path(tempfile.mkdtemp(prefix="svc-first-run-", dir="/var/tmp"))
    folder.chmod(0o755)
    made = Newcomer(folder, free_port(row=3))  # The demonstration has the two after it, too.
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 120):
            await made.runs("--stop")
        host.clear(f"d{made.port % 1000:03}")
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_first_run_is_repeated_until_it_succeeds_and_after_the_machine_is_gone(newcomer: Newcomer) -> None:
    damaged = newcomer.folder / "images"
    damaged.mkdir()
    (damaged / "demo.qcow2").write_bytes(b"no image at all" * 4096)

    failed = await newcomer.runs("--detach", images=damaged)
    repeated = await newcomer.runs("--detach")
    deleted = await newcomer.svc("vm", "delete", "demo", "--yes", "--wait")
    anew = await newcomer.runs("--detach")

    assert b"vm.create of demo failed" in failed.stdout
    assert failed.returncode != 0
    assert b"replacing the machine demo" in repeated.stdout
    assert b"demo login:" in repeated.stdout
    assert repeated.returncode == 0, repeated.stdout[-4000:]
    assert deleted.returncode == 0, deleted.stdout
    assert b"creating the machine demo" in anew.stdout
    assert anew.returncode == 0, anew.stdout[-4000:]
    assert repeated.stdout.count(b"fetching image demo") < 4  # a line every few seconds, not one a percent
