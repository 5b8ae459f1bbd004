"""Keeps the mail of a staging copy in the copy, both for PHP that serves it and for PHP in its scheduled tasks.

Serving PHP gets the settings through its pool's configuration. The command line has no configuration per site, so
programs of a copy get an additional folder of settings (PHP_INI_SCAN_DIR). As an environment variable it also reaches
PHP that a task itself starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from svc_common.durable import hold
from svc_webhost.accounts import SiteAccount
from svc_webhost.database_clients import settings_of_php
from svc_webhost.folders import HostFolders

PROGRAM: Final = "keep_mail.php"
_SETTINGS: Final = "command-line"


def directives(shown: Path) -> dict[str, str]:
    """PHP's settings. `shown`: the program's folder, as the site sees it."""
    return {
        "auto_prepend_file": f"{shown / PROGRAM}",
        "sendmail_path": f"/usr/bin/php -n {shown / PROGRAM}",
    }


def folder_of(account: SiteAccount, folders: HostFolders) -> Path:
    """The folder for the program and its settings. It is root's, and other sites cannot see it."""
    return folders.php / account.name


def environment(account: SiteAccount, folders: HostFolders) -> dict[str, str]:
    """The environment of a copy's program: the usual settings of all sites, and these."""
    return {"PHP_INI_SCAN_DIR": f"{settings_of_php(folders)}:{folder_of(account, folders) / _SETTINGS}"}


def prepare(account: SiteAccount, folders: HostFolders) -> Path:
    """Write the program and the command line's settings; returns their folder, which must be shown to the site.
    Blocks."""
    folder = folder_of(account, folders)
    folders.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    folders.php.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / _SETTINGS).mkdir(mode=0o755, exist_ok=True)
    hold(folder / PROGRAM, Path(__file__).with_name(PROGRAM).read_text())
    lines = [f'{name} = "{value}"\n' for name, value in directives(folder).items()]
    hold(folder / _SETTINGS / "mail.ini", "".join(lines))
    return folder
