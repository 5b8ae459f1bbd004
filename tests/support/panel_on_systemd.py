"""The installed panel of a Debian with systemd, as root of that server uses it: over the core's socket."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.support.panel_releases import offer_release
from tests.support.systemd_root import SystemdRoot

_JOB_SECONDS = 300.0


@dataclass(frozen=True)
class InstalledPanel:
    server: SystemdRoot

    def ask(self, method: str, path: str, /, **body: object) -> Any:
        given = () if method == "GET" else ("-H", "Content-Type: application/json", "-d", json.dumps(body))
        answer = self.server.run(*self._curl(method, path, *given))
        found = json.loads(answer)
        assert "error" not in found, f"{method} {path}: {found}\n{self._log()}"
        return found

    def _curl(self, method: str, path: str, *given: str) -> tuple[str, ...]:
        request = ("-X", method, *given, f"http://core/api/v1{path}")
        return ("curl", "-sS", "--unix-socket", "/run/svc-panel/core.sock", *request)

    def _log(self) -> str:
        """The end of the core's."""
        return self.server.run("journalctl", "--unit=svc-panel-core", "--lines=40", "--output=cat", check=False)

    def done(self, method: str, path: str, /, **body: object) -> dict[str, Any]:
        """The job that the call begins, once it has succeeded."""
        return self.ended(self.ask(method, path, **body))

    def ended(self, job: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + _JOB_SECONDS
        while job["status"] in ("queued", "running"):
            assert time.monotonic() < deadline, job
            time.sleep(0.2)  # The work of other processes.
            job = self.ask("GET", f"/jobs/{job['id']}")
        assert job["status"] == "succeeded", json.dumps(job)
        return job

    def ended_run(self, schedule: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
        """Of a scheduled task, with what it wrote."""
        deadline = time.monotonic() + _JOB_SECONDS
        while True:
            shown: dict[str, Any] = self.ask("GET", f"/schedules/{schedule['id']}/runs/{run['id']}")
            if shown["ended_at"] is not None:
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)  # The work of other processes.

    def update(self, version: str, changed: dict[str, str]) -> dict[str, Any]:
        """Have a release that differs by `changed` tried; what is shown of it when that has ended."""
        offer_release(self.server, version, changed)
        job = self.ask("POST", "/updates/panel/install")
        deadline = time.monotonic() + _JOB_SECONDS
        while True:
            time.sleep(0.5)  # The work of other processes, of which the core is one that ends meanwhile.
            assert time.monotonic() < deadline, self._log()
            answer = self.server.run(*self._curl("GET", "/updates/panel"), check=False)
            shown: dict[str, Any] = json.loads(answer or "{}")
            if shown.get("job_id", job["id"]) is None:
                assert shown["last"] is not None, self.ask("GET", f"/jobs/{job['id']}")
                return shown

    def write(self, site: dict[str, Any], path: str, content: str) -> None:
        self.ask("PUT", f"/sites/{site['id']}/files/content", path=path, content=content, replace=True)

    def visit(self, site: dict[str, Any], path: str = "/") -> str:
        """What a visitor is answered with the status 200."""
        return self.server.run("curl", "-fsSL", "-H", f"Host: {site['domain']}", f"http://127.0.0.1{path}")
