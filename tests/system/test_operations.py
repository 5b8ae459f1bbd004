"""docs/operations.md, carried out line by line on a Debian whose first process is systemd."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.package import packages
from tests.support.systemd_root import SMALL, SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = Path(__file__).parents[2]
NAME = "controller.example"


def commands() -> list[str]:
    lines = (ROOT / "docs/operations.md").read_text().splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SystemdRoot]:
    package = packages()["svc-controller"]
    with systemd_root(tmp_path, SMALL) as root:
        home = root.folder / "root"
        (home / package.name).write_bytes(package.read_bytes())
        (home / "password").write_text("Correct-Horse-42\n")
        (home / "backup-passphrase").write_text("a passphrase that is kept elsewhere too\n")
        with (root.folder / "etc/hosts").open("a") as hosts:
            hosts.write(f"127.0.0.1 {NAME}\n")
        yield root


def test_every_command_does_what_the_page_says(host: SystemdRoot) -> None:
    environment: list[str] = []
    said: dict[str, str] = {}
    for command in commands():
        if command.startswith("export "):
            environment += shlex.split(command)[1:]
            continue
        said[command] = host.run("env", "HOME=/root", *environment, "sh", "-c", f"cd /root; {command}")

    def of(beginning: str) -> str:
        [found] = [answer for command, answer in said.items() if command.startswith(beginning)]
        return found

    assert of("systemctl is-active") == "active\n"
    assert "failed" not in of("runuser -u svc -- svc controller check")
    assert "curl" in of("svc node add")
    assert "authority" in of("svc certificate show")
    assert "  ok  " in of("runuser -u svc -- svc controller backups")
    assert '"database":"ok"' in of("curl -fsS http://127.0.0.1:8445/healthz")
    assert "svc_database_up 1.0" in of("curl -fsS http://127.0.0.1:8445/metrics")
    assert "service.started" in of("journalctl")
    assert "about.json" in of("runuser -u svc -- svc controller support-bundle")
    assert not (host.folder / "var/lib/svc/controller").exists()
    assert host.run("pgrep", "-u", "svc", check=False) == ""
