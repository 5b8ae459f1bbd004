"""What keeps the mail of a copy of a site in the copy, for PHP that serves and for PHP that a scheduled task runs.

PHP that serves gets it by the configuration of its pool. The command line has none of a site's own, so programs of a
copy get it by a folder of settings that PHP reads beside the server's (PHP_INI_SCAN_DIR). That is in the environment,
so it reaches also the PHP that a task starts in turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.database_clients import settings_of_php
from svc_actors.host.folders import HostFolders
from svc_actors.host.text_files import hold

PROGRAM: Final = "keep_mail.php"
_SETTINGS: Final = "command-line"


def directives(shown: Path) -> dict[str, str]:
    """PHP's settings. `shown`: the folder in which the program lies, as the site sees it."""
    return {
        "auto_prepend_file": f"{shown / PROGRAM}",
        "sendmail_path": f"/usr/bin/php -n {shown / PROGRAM}",
    }


def folder_of(account: SiteAccount, folders: HostFolders) -> Path:
    """Of root's; other sites do not see it at all."""
    return folders.php / account.name


def environment(account: SiteAccount, folders: HostFolders) -> dict[str, str]:
    """Of a program of a copy: what every program of a site is told, and this."""
    return {"PHP_INI_SCAN_DIR": f"{settings_of_php(folders)}:{folder_of(account, folders) / _SETTINGS}"}


def prepare(account: SiteAccount, folders: HostFolders) -> Path:
    """The program and the settings of the command line; gives their folder, which has to be shown. Blocks."""
    folder = folder_of(account, folders)
    folders.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    folders.php.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / _SETTINGS).mkdir(mode=0o755, exist_ok=True)
    hold(folder / PROGRAM, Path(__file__).with_name(PROGRAM).read_text())
    lines = [f'{name} = "{value}"\n' for name, value in directives(folder).items()]
    hold(folder / _SETTINGS / "mail.ini", "".join(lines))
    return folder
