"""`svc` on a panel's server: the panel's commands, over the core's socket, without a sign-in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from svc.cli.failures import Exit
from svc.cli.profiles import Profile, ProfileFile, save
from svc.cli.services import ServiceKind, service_of
from svc_actors.store import Database
from tests.cli.conftest import Terminal
from tests.support.panel_core import listening_core


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core's log is no part of what a command prints."""
    with structlog.testing.capture_logs():
        yield


async def test_root_asks_the_core_without_a_token(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        listed = await terminal.ok("--socket", str(panel.services.config.socket), "site", "list", "-o", "json")
        by_variable = await terminal.ok("site", "list", "-o", "json", SVC_SOCKET=str(panel.services.config.socket))

    assert listed.json["items"] == by_variable.json["items"] == []


async def test_a_token_is_used_over_the_socket_too(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        token = await panel.token(await panel.person("ada@example.com"))

        me = await terminal.ok("me", "-o", "json", SVC_SOCKET=str(panel.services.config.socket), SVC_TOKEN=token)

    assert me.json["email"] == "ada@example.com"


async def test_a_core_that_is_not_there_is_told_with_what_to_do(terminal: Terminal) -> None:
    ended = await terminal.svc("--socket", "/nonexistent/core.sock", "site", "list")

    assert ended.code == Exit.UNAVAILABLE
    assert "is the panel's core running" in ended.err


async def test_ops_prints_the_registry_of_the_service_that_is_meant(terminal: Terminal) -> None:
    panel = await terminal.ok("--socket", "/nonexistent/core.sock", "ops", "-o", "json")
    controller = await terminal.ok("--url", "https://controller.test:8443", "ops", "-o", "json")

    assert "site.list" in {row["operation"] for row in panel.json}
    assert "vm.list" in {row["operation"] for row in controller.json}


@pytest.mark.parametrize(
    ("arguments", "environment", "meant"),
    [
        ([], {}, ServiceKind.CONTROLLER),
        (["--url", "https://panel.test:7443"], {}, ServiceKind.PANEL),
        (["site", "list", "--url=https://panel.test:7443"], {}, ServiceKind.PANEL),
        (["--url", "https://sites.test"], {}, ServiceKind.PANEL),
        (["--url", "https://controller.test:8443"], {"SVC_SOCKET": "/run/x"}, ServiceKind.PANEL),
        ([], {"SVC_URL": "https://controller.test:8443"}, ServiceKind.CONTROLLER),
        (["--profile", "sites"], {"SVC_URL": "https://controller.test:8443"}, ServiceKind.PANEL),
        (["--profile", "machines"], {}, ServiceKind.CONTROLLER),
    ],
)
def test_who_names_a_service_means_that_one(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], meant: ServiceKind
) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path), **environment}
    save(
        environment,
        ProfileFile(
            None,
            {
                "sites": Profile(url="https://sites.test", service="panel"),
                "machines": Profile(url="https://controller.test:8443"),
            },
        ),
    )

    assert service_of(environment, arguments, tmp_path / "core.sock") is meant


def test_without_a_profile_the_core_on_this_server_is_meant(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "core.sock"))

        meant = service_of({"XDG_CONFIG_HOME": str(tmp_path)}, [], tmp_path / "core.sock")

    assert meant is ServiceKind.PANEL
