"""`svc panel`: the programs of the hosting panel on its server.

Each is loaded when it runs: the web tier's process holds none of the core's modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import asyncclick as click

_COMMANDS: Final = {
    "check": "svc.cli.panel.check",
    "core": "svc.cli.panel.core",
    "keeper": "svc.cli.panel.keeper",
    "stop": "svc.cli.panel.stop",
    "web": "svc.cli.panel.web",
}


class _Programs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command


panel = _Programs("panel", help="Run the hosting panel of this server.")
