"""`svc panel keeper`: supervises the sites' programs on servers without systemd."""

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
    """Hold the programs of this server's sites, so that they outlive the panel.

    The core starts it where nobody else does. Ended, it leaves them running; the next one takes them over."""
    # This process is replaced by the keeper: otherwise the command line's modules would stay in its memory for ever.
    os.execv(PROGRAM[0], [*PROGRAM, str(data.resolve())])  # noqa: S606 - no shell is wanted
