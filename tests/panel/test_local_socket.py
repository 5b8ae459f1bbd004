"""The core's own socket: the kernel says who is there, and that decides what they may do without a credential."""

from __future__ import annotations

import json
import pwd
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import trio

from svc_actors.store import Database
from svc_http.server import serve_local
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_core import WEB_ACCOUNT, listening_core

WEB = pwd.getpwnam(WEB_ACCOUNT)
ASK = """
import http.client, json, os, socket, sys
path, uid, headers = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups([int(sys.argv[4])]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
connection = http.client.HTTPConnection("core")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
try:
    connection.request(sys.argv[5], "/api/v1" + sys.argv[6], headers=headers)
    answer = connection.getresponse()
    print(answer.status, answer.read().decode())
except (ConnectionError, http.client.HTTPException) as error:
    print("closed", type(error).__name__)
"""


def root(panel: PanelHarness) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(panel.services.config.socket))
    return httpx.AsyncClient(transport=transport, base_url="http://core/api/v1")


async def ask_as(
    panel: PanelHarness, uid: int, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> str:
    """What a process of that account is answered, which is in the socket's group."""

    arguments = [str(panel.services.config.socket), str(uid), json.dumps(headers or {}), str(WEB.pw_gid), method, path]
    done = await trio.run_process(
        [sys.executable, "-c", ASK, *arguments], capture_stdout=True, stdin=subprocess.DEVNULL
    )
    return done.stdout.decode().strip()


async def test_root_needs_no_credential_and_is_in_the_audit_as_local(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel, root(panel) as client:
        refused = await client.post("/auth/logout", json={})
        listed = await client.get("/sites")

        assert listed.status_code == 200, listed.text
        assert refused.status_code < 500


async def test_a_credential_over_the_socket_is_whoever_it_is_of(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel, root(panel) as client:
        token = await panel.token(await panel.person("ada@example.com"))

        me = await client.get("/me", headers={"Authorization": f"Bearer {token}"})
        wrong = await client.get("/me", headers={"Authorization": "Bearer svc_made-up"})

    assert me.json()["email"] == "ada@example.com"
    assert wrong.status_code == 401


async def test_the_web_tier_has_no_authority_of_its_own(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel:
        answer = await ask_as(panel, WEB.pw_uid, "/sites", {"X-Service-Client": "192.0.2.7"})

    assert answer.startswith("401 ")


async def test_the_web_tier_says_from_where_a_request_comes_and_nobody_else_can(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel, root(panel) as client:
        await panel.person("ada@example.com")
        guess = {"email": "ada@example.com", "password": "a guess"}
        await client.post("/auth/login", json=guess, headers={"X-Service-Client": "192.0.2.9"})
        attempts = await panel.database.fetch("SELECT address FROM audit")

    assert {row["address"] for row in attempts} == {"local:uid=0"}


async def test_anybody_else_is_let_go_before_a_byte_is_read(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel:
        answer = await ask_as(panel, 65534, "/sites")

    assert answer.startswith("closed ")


async def test_only_root_and_the_web_tier_can_open_the_socket(panel_database: Database) -> None:
    async with listening_core(panel_database) as panel:
        status = panel.services.config.socket.stat()

    assert stat.S_IMODE(status.st_mode) == 0o660
    assert (status.st_uid, status.st_gid) == (0, WEB.pw_gid)


async def test_a_core_that_was_stopped_leaves_no_socket_by_which_the_command_line_takes_it_for_there(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        socket = panel.services.config.socket
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            await nursery.start(partial(serve_local, panel.app, socket, WEB_ACCOUNT, stop))
            listening = socket.is_socket()
            stop.set()

        assert listening
        assert not socket.exists()
