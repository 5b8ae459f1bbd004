"""The variables of a release, in a file that its account alone can read.

The program that serves the application reads it when it starts, and whenever the launcher starts it again. So no value
is in a definition of the launcher, on a command line, or in an environment from before the account was taken on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.folders import HostFolders


def variables_file(folders: HostFolders, account: SiteAccount, release: int) -> Path:
    return folders.apps / f"{account.name}-{release}.variables"


def write_variables(path: Path, account: SiteAccount, values: Mapping[str, str]) -> None:
    """Whole or not at all. The folder is root's, so nothing that an account could lay is in the way."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "w") as file:
        os.fchown(descriptor, account.uid, account.uid)
        json.dump(dict(values), file)
    os.replace(new, path)
