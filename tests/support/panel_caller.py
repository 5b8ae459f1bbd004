"""Requests to the panel's core as the web tier carries them: HTTP over its Unix socket, from that account."""

from __future__ import annotations

import json
import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from tests.support.panel import PanelHarness
from tests.support.panel_core import WEB_ACCOUNT

_PROGRAM = """
import http.client, json, os, socket, sys
path, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([gid]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
connection = None
for line in sys.stdin:
    asked = json.loads(line)
    if connection is None:
        connection = http.client.HTTPConnection("core")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
    headers = {"Content-Type": "application/json", "X-Service-Client": "192.0.2.7", **asked["headers"]}
    body = None if asked["body"] is None else json.dumps(asked["body"])
    connection.request(asked["method"], "/api/v1" + asked["path"], body, headers)
    answer = connection.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    print(json.dumps([answer.status, told, answer.read().decode()]), flush=True)
    if answer.will_close:
        connection.close()
        connection = None
"""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    body: Any = None
    token: str | None = None


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def error(self) -> dict[str, str]:
        error: dict[str, str] = json.loads(self.text)["error"]
        return error


async def carried(panel: PanelHarness, requests: Sequence[Asked]) -> list[Answered]:
    """The answers to the requests, in their order, one after the other over one connection."""
    web = pwd.getpwnam(WEB_ACCOUNT)
    lines = [
        json.dumps(
            {
                "method": asked.method,
                "path": asked.path,
                "body": asked.body,
                "headers": {} if asked.token is None else {"Authorization": f"Bearer {asked.token}"},
            }
        )
        for asked in requests
    ]
    done = await trio.run_process(
        [sys.executable, "-c", _PROGRAM, str(panel.services.config.socket), str(web.pw_uid), str(web.pw_gid)],
        stdin=("\n".join(lines) + "\n").encode(),
        capture_stdout=True,
    )
    answers = [Answered(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests)
    return answers
