"""The server that the panel runs on: what starts its programs, and what each of them is given."""

from __future__ import annotations

from svc.cli.panel.compose import Host
from svc.panel.config import PanelConfig
from svc_actors.host.delegation import ParentServers
from svc_actors.host.knot import KnotServer
from svc_actors.host.launchers import launcher_of


def this_server(config: PanelConfig) -> Host:
    """What drives it. Nothing is started yet."""
    launcher = launcher_of(config.folders)
    return Host(
        launcher=launcher,
        name_server=KnotServer(config.folders.knot, config.dns.knot, launcher),
        delegations=ParentServers(),
    )
