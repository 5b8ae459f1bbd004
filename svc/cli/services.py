"""Finds out which of the two services a command line is for: the commands are generated from that service's operations.

In this order: a service that the user names (by a socket, an address or a profile); the current profile; a panel that
is installed on this server, or whose core listens here; the controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from svc.cli.failures import Failure
from svc.cli.profiles import load, normal_url

if TYPE_CHECKING:
    from svc.registry.registry import Registry

CORE_SOCKET: Final = Path("/run/svc-panel/core.sock")
PANEL_CONFIGURATION: Final = Path("/etc/svc/panel.toml")
"""The panel's package installs this file: a server that has it is a panel, even while the core restarts."""
SOCKET_VARIABLE: Final = "SVC_SOCKET"
PANEL_PORT: Final = 7443


class ServiceKind(StrEnum):
    CONTROLLER = "controller"
    PANEL = "panel"


def registry_of(kind: ServiceKind) -> Registry[Any]:
    """The registry of the service. Loading all of its models takes half a second."""
    if kind is ServiceKind.PANEL:
        from svc.panel.catalogue import panel_registry

        return panel_registry()
    from svc.controller.catalogue import controller_registry

    return controller_registry()


def service_of(
    environment: Mapping[str, str],
    arguments: Sequence[str],
    socket: Path = CORE_SOCKET,
    installed: Path = PANEL_CONFIGURATION,
) -> ServiceKind:
    """The service that the command line `arguments` is for. This runs before click parses the options, since the
    commands that define them depend on the result."""
    if _option(arguments, "--socket") or environment.get(SOCKET_VARIABLE):
        return ServiceKind.PANEL
    url, named = _option(arguments, "--url"), _option(arguments, "--profile")
    if url is None and named is None:
        url, named = environment.get("SVC_URL"), environment.get("SVC_PROFILE")
    try:
        stored = load(environment)
        if url is not None:
            return service_at(normal_url(url), {each.url: each.service for each in stored.profiles.values()})
    except Failure:
        return ServiceKind.CONTROLLER  # The profile cannot be read: the command that needs it reports what is wrong.
    profile = stored.profiles.get(named or stored.current or "")
    if profile is not None:
        return ServiceKind(profile.service or ServiceKind.CONTROLLER)
    here = socket.is_socket() or installed.exists()
    return ServiceKind.PANEL if named is None and here else ServiceKind.CONTROLLER


def service_at(url: str, known: Mapping[str, str | None]) -> ServiceKind:
    """The service at an address: that of the profile with this address (`known`); without a profile, a panel if the
    port is the panel's."""
    if url in known:
        return ServiceKind(known[url] or ServiceKind.CONTROLLER)
    return ServiceKind.PANEL if urlsplit(url).port == PANEL_PORT else ServiceKind.CONTROLLER


def _option(arguments: Sequence[str], flag: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and position + 1 < len(arguments):
            return arguments[position + 1]
    return None
