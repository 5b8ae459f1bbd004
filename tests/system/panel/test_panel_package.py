"""The panel's Debian package, installed on a server whose first process is systemd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.package import packages
from tests.support.systemd_root import SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]

CORE, WEB, KNOT = "svc-panel-core.service", "svc-panel-web.service", "svc-host-knot.service"
DOCUMENT = ("curl", "-fsSk", "https://127.0.0.1:7443/api/v1/openapi.json")
CONTROL = Path(__file__).resolve().parents[3] / "tools" / "packages" / "panel" / "control"


def needed() -> str:
    """What the package depends on, and what the tests use themselves."""
    [depends] = re.findall(r"^Depends: (.*)$", CONTROL.read_text(), re.MULTILINE)
    return ",".join(sorted({word.split()[0] for word in depends.split(", ")} | {"curl", "procps"}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdRoot]:
    with systemd_root(tmp_path_factory.mktemp("server"), needed()) as root:
        (root.folder / "var/cache/svc-panel.deb").write_bytes(packages()["svc-panel"].read_bytes())
        root.run("dpkg", "--install", "/var/cache/svc-panel.deb")
        yield root


def show(server: SystemdRoot, unit: str, name: str) -> str:
    return server.run("systemctl", "show", "--property", name, "--value", unit).strip()


def test_an_installed_panel_serves_browsers_and_the_command_line(server: SystemdRoot) -> None:
    document = server.until(*DOCUMENT)
    listed = server.run("svc", "ops")

    assert '"title":"Hosting Panel"' in document.replace(": ", ":")
    assert "site.create" in listed or "token.create" in listed
    assert server.run("systemctl", "is-enabled", CORE, WEB).split() == ["enabled", "enabled"]
    assert server.run("ps", "-o", "user=", "-p", show(server, WEB, "MainPID")).split() == ["svc-web"]
    assert server.run("ps", "-o", "user=", "-p", show(server, CORE, "MainPID")).split() == ["root"]


def test_debians_own_servers_leave_the_ports_to_the_panel(server: SystemdRoot) -> None:
    states = server.run(
        "systemctl", "is-active", "nginx.service", "knot.service", "php8.2-fpm.service", check=False
    ).split()

    assert states == ["inactive"] * 3


def test_the_core_sees_what_a_site_left_in_the_servers_tmp(server: SystemdRoot) -> None:
    left = ("/tmp/left-by-a-site", "/var/tmp/left-by-a-site")
    server.run("touch", *left)
    root = f"/proc/{show(server, CORE, 'MainPID')}/root"

    seen = server.run(
        "sh",
        "-c",
        'for each; do if [ -e "$each" ]; then echo "$each"; fi; done',
        "sh",
        *(f"{root}{path}" for path in left),
    )

    assert seen.split() == [f"{root}{path}" for path in left]


def test_the_web_tier_could_do_little_besides(server: SystemdRoot) -> None:
    verdict = server.run("systemd-analyze", "security", "--no-pager", "--threshold=20", WEB)

    assert "Overall exposure level" in verdict


def test_a_killed_core_is_back_and_neither_web_nor_what_serves_ended(server: SystemdRoot) -> None:
    server.until(*DOCUMENT)
    server.until("systemctl", "is-active", KNOT)
    before = [show(server, unit, "MainPID") for unit in (WEB, KNOT)]

    server.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", CORE)
    server.until("sh", "-c", f"[ $(systemctl show --property NRestarts --value {CORE}) -ge 1 ]")
    server.until(*DOCUMENT)

    assert [show(server, unit, "MainPID") for unit in (WEB, KNOT)] == before


def test_a_removed_panel_leaves_its_data_and_no_process(server: SystemdRoot) -> None:
    server.run("dpkg", "--remove", "svc-panel")

    assert server.run("ls", "/var/lib/svc/panel").split() != []
    assert server.run("sh", "-c", "ps -eo args= | grep -c '[s]vc panel' || true").strip() == "0"
    assert server.run("sh", "-c", "ls /run/systemd/system | grep svc-host || true").strip() == ""
