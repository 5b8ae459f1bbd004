"""The server during a switch, seen through systemd, the core's socket, web and nginx. Every check has a deadline."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from svc_webhost.releases.layout import Trial
from svc_webhost.releases.switch import Core

CORE: Final = "svc-panel-core.service"
WEB: Final = "svc-panel-web.service"
_TIMEOUT: Final = 5.0
_STOP_SECONDS: Final = 120.0
"""How long to wait for a stop: longer than TimeoutStopSec= of the core's unit."""
_AT_ONCE: Final = 8
_WORST: Final = 500
_MOST_WORDS: Final = 300
RUNNING_PATH: Final = "/api/v1/updates/panel"


class _CoreConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("core", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(self._path)


class SystemdServer:
    def stop_core(self) -> None:
        _ran("systemctl", "stop", CORE, seconds=_STOP_SECONDS)

    def start(self) -> None:
        # Failures that systemd has counted so far are not of the release that is started now.
        _ran("systemctl", "reset-failed", CORE, WEB)
        _ran("systemctl", "start", "--no-block", CORE)
        # Restarted and not stopped, so that systemd keeps the listening socket, and connections wait.
        _ran("systemctl", "restart", "--no-block", WEB)

    def core(self) -> Core | None:
        said = _ran("systemctl", "show", "--property=ActiveState,MainPID,NRestarts", CORE)
        found = dict(line.partition("=")[::2] for line in said.splitlines())
        try:
            return Core(found["ActiveState"] == "failed", int(found["MainPID"]), int(found["NRestarts"]))
        except (KeyError, ValueError):
            return None

    def release(self, trial: Trial) -> str | None:
        connection = _CoreConnection(trial.socket)
        try:
            connection.request("GET", RUNNING_PATH)
            answer = connection.getresponse()
            content = answer.read(1 << 20)
            return str(json.loads(content)["running"]["name"]) if answer.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return None
        finally:
            connection.close()

    def web_answers(self, trial: Trial) -> bool:
        context = ssl.create_default_context()
        # The connection is to this server itself, so the certificate need not be verified.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", trial.ports.web, timeout=_TIMEOUT, context=context)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < _WORST
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def answering(self, trial: Trial, domains: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            well = pool.map(lambda domain: _visit(domain, trial.ports.sites), domains)
            return [domain for domain, answers in zip(domains, well, strict=True) if answers]

    def last_words(self) -> str:
        said = _ran("journalctl", f"--unit={CORE}", "--lines=50", "--output=cat", "--no-pager")
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith(("systemd", CORE))]
        told = [line for line in lines if line.startswith("svc: ") or "Error" in line]
        return (told or [""])[-1].removeprefix("svc: ")[:_MOST_WORDS]


def _visit(domain: str, port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/", headers={"Host": domain})
        return connection.getresponse().status < _WORST
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ran(*command: str, seconds: float = 30.0) -> str:
    """Returns its output. Its exit status is ignored, since the result is checked afterwards."""
    try:
        return subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=seconds
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
