"""A site on a real server: its account, what visitors get, and that nothing of it is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from tests.support.own_etc import copy_etc, with_etc

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = Path(__file__).resolve().parents[3]
OWN_PROCESSES = ("--pid", "--mount-proc", "--fork", "--kill-child")
"""The accounts' files are its own, so that other tests' sites have the same accounts: their processes are not seen."""


async def test_a_site_is_opened_by_visitors_and_leaves_nothing_behind(panel_database_url: str, tmp_path: Path) -> None:
    await trio.to_thread.run_sync(copy_etc, tmp_path / "etc")
    program = [sys.executable, "-m", "tests.system.panel.site_life", panel_database_url]

    ran = await trio.run_process(
        with_etc(tmp_path / "etc", *program, namespaces=OWN_PROCESSES),
        cwd=ROOT,
        capture_stderr=True,
        check=False,
    )
    said = ran.stderr.decode()
    told = [line for line in said.splitlines() if line.startswith("RESULT ")]
    assert told, said[-4000:]
    life = json.loads(told[0].removeprefix("RESULT "))

    assert life["status"] == "active"
    assert "life.example" in life["page"]
    assert life["alias"] == life["page"] == life["back"]
    assert life["stat"]["public"] == [life["uid"], 0o755]
    assert life["stat"]["private"] == [life["uid"], 0o700]
    assert life["others"] != 0, "another account reads the site's files"
    assert life["suspended"][0] == 503
    assert "secret reason" not in life["suspended"][1]
    assert any('"GET / HTTP/1.1" 200' in line for line in life["lines"])
    assert len(life["lived"]["processes"]) >= 2
    assert life["lived"]["files"] == ["/tmp/left-by-a-site"]
    assert life["job"]["status"] == "succeeded"
    assert life["gone"] == "RemoteProtocolError"
    assert life["after"] == life["before"]
