"""`svc panel stop`: stops the programs that serve the sites. They keep running when only the core is stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import asyncclick as click

from svc.cli.failures import Exit, Failure
from svc.cli.terminal import write
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.launchers import launcher_of


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, resolve_path=True, file_okay=False, exists=True),
    default=Path("/var/lib/svc/panel"),
    show_default=True,
)
async def stop(data: Path) -> None:
    """Stop the programs that serve this server's sites. A core that still runs starts them again."""
    launcher = launcher_of(HostFolders(data))
    try:
        for name in sorted(await launcher.names()):
            await launcher.stop(name)
            write(f"stopped {name}")
        if isinstance(launcher, KeeperLauncher):
            # Nothing needs the keeper now; the next core starts another one.
            os.kill(await launcher.keeper_pid(), signal.SIGTERM)
    except LauncherError as error:
        raise Failure(Exit.UNAVAILABLE, str(error)) from error
