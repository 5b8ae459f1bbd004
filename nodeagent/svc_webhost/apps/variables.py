"""The variables of a release, in a file that only its account can read.

The program that serves the application reads it at every start, including restarts by the launcher. So no value is in a
definition of the launcher, on a command line, or in the environment of a process that still runs as root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders


def variables_file(folders: HostFolders, account: SiteAccount, release: int) -> Path:
    return folders.apps / f"{account.name}-{release}.variables"


def write_variables(path: Path, account: SiteAccount, values: Mapping[str, str]) -> None:
    """Write the file completely or not at all. The folder is root's, so no account can put a link or another file
    there."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "w") as file:
        os.fchown(descriptor, account.uid, account.uid)
        json.dump(dict(values), file)
    os.replace(new, path)
