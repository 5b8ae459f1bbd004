"""`svc panel keeper`: supervises the programs of sites on servers without systemd."""

from __future__ import annotations

import os
from pathlib import Path

import asyncclick as click

from svc_webhost.launcher_keeper import PROGRAM


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="The data folder of the panel.",
)
def keeper(data: Path) -> None:
    """Supervise the programs of this server's sites, which continue to run while the panel is stopped.

    The core starts a keeper if none runs. When a keeper ends, the programs keep running, and the next keeper takes them
    over."""
    # The keeper replaces this process by exec, so that the modules of the command line do not stay in its memory.
    os.execv(PROGRAM[0], [*PROGRAM, str(data.resolve())])  # noqa: S606 - no shell is wanted
