"""Commands that dump a database into a file and load one from a file: which program runs where, and as whom."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from svc_webhost import confined
from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import dump
from svc_webhost.databases.server import DatabaseError, SiteFile
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, SiteLauncher
from svc_webhost.site_runtime import SiteCommands

_SQL: Final = Path(confined.__file__).resolve().with_name("sql.py")
_PACKAGE: Final = _SQL.parents[1]
_INTERPRETER: Final = os.path.realpath(sys.executable)
"""The system's interpreter. The link to it in a virtual environment is not used, because it is next to the code."""
DUMP_SECONDS: Final = 3 * 3600.0
LOOK_SECONDS: Final = 3600.0
LOAD_SECONDS: Final = 5 * 3600.0


def dump_command(file: Path, marker: str, *commands: tuple[str, ...]) -> tuple[str, ...]:
    """The commands whose output, one after the other, is the dump."""
    words = [word for command in commands for word in (dump.THEN, *command)][1:]
    return (sys.executable, "-I", "-S", dump.__file__, str(file), marker, *words)


async def load_command(
    folders: HostFolders,
    launcher: SiteLauncher,
    dialect: str,
    source: Path | SiteFile,
    account: SiteAccount,
    command: tuple[str, ...] | None,
    *,
    rows: bool = False,
) -> tuple[str, ...]:
    """`command` None: the file is only checked. Runs as the site's account in its view of the server: the site's other
    programs can inspect this process, and find nothing there that they do not have themselves. The view includes this
    code even if it lies in somebody's home or in /tmp. Raises `DatabaseError`."""
    site = source if isinstance(source, SiteFile) else None
    order = {
        "uid": account.uid,
        "gid": account.uid,
        "root": None if site is None else str(site.root),
        "path": None if site is None else site.path,
        "dialect": dialect,
        "command": command,
        "rows": rows,
    }
    words = (_INTERPRETER, "-I", "-S", "-X", "utf8", str(_SQL), json.dumps(order))
    try:
        return await SiteCommands(folders, launcher).command(account, words, None, shown=(_PACKAGE,))
    except LauncherError as error:
        raise DatabaseError(str(error)) from error
