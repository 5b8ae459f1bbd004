"""`svc controller`: an operator's commands on the controller's own host, with the options of `svc serve controller`."""

from __future__ import annotations

import asyncclick as click

from svc.cli.backup import backup, backups, restore, rewound
from svc.cli.check import check
from svc.cli.support_bundle import support_bundle


@click.group()
def controller() -> None:
    """Look after the controller of this machine."""


for command in (check, backup, backups, restore, rewound, support_bundle):
    controller.add_command(command)
