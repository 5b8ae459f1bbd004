"""Mail of programs of sites, on its way to the core: the sendmail that they find, and where it is.

    run/shared/mail/         seen by the programs of every site
        mail.sock            the core listens; the kernel says which account has connected
        sbin/sendmail        starts the program; covers the server's /usr/sbin/sendmail in the view of a site
        svc_webhost/mail/    the program: `sendmail.py` and what it imports

Why: docs/decisions/0057-mail-of-sites.md.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from svc_common.durable import hold
from svc_webhost.folders import HostFolders

_HERE: Final = Path(__file__).parent
_PROGRAM: Final = ("sendmail.py", "message.py", "dkim.py")
PYTHON: Final = "/usr/bin/python3"


def socket_of(folders: HostFolders) -> Path:
    return folders.site_mail / "mail.sock"


def sendmail(folders: HostFolders) -> Path:
    return folders.site_mail / "sbin" / "sendmail"


def prepare(folders: HostFolders) -> None:
    """Write the program, and the settings with which PHP finds it. Blocks."""
    package = folders.site_mail / "svc_webhost" / "mail"
    for folder in (folders.site_mail, sendmail(folders).parent, package.parent, package):
        folder.mkdir(mode=0o755, exist_ok=True)
    for name in _PROGRAM:
        hold(package / name, (_HERE / name).read_text())
    program = shlex.quote(str(package / "sendmail.py"))
    hold(sendmail(folders), f'#!/bin/sh\nexec {PYTHON} -I -S {program} "$@"\n')
    sendmail(folders).chmod(0o755)
    # PHP's own header names the script that called mail(); the program takes it out again.
    path = shlex.quote(str(sendmail(folders)))
    hold(folders.client_settings / "mail.ini", f'sendmail_path = "{path} -t -i"\nmail.add_x_header = On\n')
