"""The account of the database's server, which the first service makes that starts as root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from svc_actors.store.reach import SERVER_USER
from tests.support.own_etc import copy_etc, with_etc

ROUNDS, AT_ONCE = 4, 3
SERVICES = f"""
import os
from pathlib import Path
from svc_actors.store.reach import server_account

for _ in range({ROUNDS}):
    for file in map(Path("/etc").joinpath, ("passwd", "shadow", "group", "gshadow")):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith("{SERVER_USER}:")))
    (waiting, start), (reading, writing) = os.pipe(), os.pipe()
    for _ in range({AT_ONCE}):
        if os.fork() == 0:
            os.close(start)
            os.read(waiting, 1)
            try:
                told = str(server_account()).replace(" ", "")
            except Exception as error:
                told = repr(error).replace(" ", "-")
            os.write(writing, f"{{told}} ".encode())
            os._exit(0)
    os.close(start)
    for _ in range({AT_ONCE}):
        os.wait()
    print(os.read(reading, 10_000).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="without root a server runs as who starts it")
def test_services_that_start_at_once_on_a_new_server_have_one_account(tmp_path: Path) -> None:
    copy_etc(tmp_path / "etc")

    ran = subprocess.run(
        with_etc(tmp_path / "etc", sys.executable, "-c", SERVICES),
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert ran.returncode == 0, ran.stderr
    rounds = [line.split() for line in ran.stdout.splitlines()]
    assert [len(accounts) for accounts in rounds] == [AT_ONCE] * ROUNDS
    for accounts in rounds:
        assert re.fullmatch(rf"Account\(name='{SERVER_USER}',uid=\d+,gid=\d+\)", accounts[0])
        assert len(set(accounts)) == 1, accounts
