"""Mail of programs of sites, on its way to the core: the sendmail that they find, and where it is.

    run/shared/mail/         seen by the programs of every site
        mail.sock            the core listens; the kernel says which account has connected
        sbin/sendmail        starts the program; covers the server's /usr/sbin/sendmail in the view of a site
        svc_webhost/mail/    the program: `sendmail.py` and what it imports, compiled

Without a relay the program could only refuse mail. `sbin` is then absent if the server has a sendmail of its own that
can work for sites: one that speaks SMTP to a mail server elsewhere, as msmtp's does.

Why: docs/decisions/0057-mail-of-sites.md.
"""

from __future__ import annotations

import shlex
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from svc_common.durable import hold
from svc_webhost.folders import HostFolders

_HERE: Final = Path(__file__).parent
_PROGRAM: Final = ("sendmail.py", "message.py", "dkim.py")
PYTHON: Final = "/usr/bin/python3"
_START: Final = "import sys; sys.path.insert(0, {!r}); from svc_webhost.mail import sendmail; sendmail.start()"
_COMPILE: Final = """\
import os, py_compile, sys
os.umask(0o022)
for path in sys.argv[1:]:
    py_compile.compile(path, doraise=True)
"""
_COMPILE_SECONDS: Final = 60.0

SENDMAIL_OF_SERVER: Final = Path("/usr/sbin/sendmail")
POSTDROP: Final = Path("/usr/sbin/postdrop")
"""Postfix's sendmail starts it and waits until it has gained rights, which it never does in a site."""


def socket_of(folders: HostFolders) -> Path:
    return folders.site_mail / "mail.sock"


def sendmail(folders: HostFolders) -> Path:
    return folders.site_mail / "sbin" / "sendmail"


def prepare(folders: HostFolders, *, relay: bool) -> None:
    """Write the program, and the settings with which PHP finds it. If sites send through the server's own sendmail
    instead, remove the files that make them find the program. `relay`: whether this server has one. Blocks."""
    package = folders.site_mail / "svc_webhost" / "mail"
    for folder in (folders.site_mail, package.parent, package):
        folder.mkdir(mode=0o755, exist_ok=True)
    for name in _PROGRAM:
        hold(package / name, (_HERE / name).read_text())
    # Python would compile it at each start, as sites cannot store the result.
    command = [PYTHON, "-I", "-S", "-c", _COMPILE, *(str(package / name) for name in _PROGRAM)]
    subprocess.run(command, check=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL)
    settings = folders.client_settings / "mail.ini"
    if not relay and _server_sends():
        settings.unlink(missing_ok=True)
        sendmail(folders).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            sendmail(folders).parent.rmdir()
        return
    sendmail(folders).parent.mkdir(mode=0o755, exist_ok=True)
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    start = shlex.quote(_START.format(str(folders.site_mail)))
    hold(sendmail(folders), f'#!/bin/sh\nexec {PYTHON} -I -S -c {start} "$@"\n')
    sendmail(folders).chmod(0o755)
    # PHP's own header names the script that called mail(); the program takes it out again.
    path = shlex.quote(str(sendmail(folders)))
    hold(settings, f'sendmail_path = "{path} -t -i"\nmail.add_x_header = On\n')


def _server_sends() -> bool:
    """Whether the server has a sendmail that may work with the rights of a site. A set-uid one (Exim) does not. A
    set-gid one may: msmtp is, only to read its settings."""
    if POSTDROP.exists():
        return False
    try:
        mode = SENDMAIL_OF_SERVER.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IXOTH) and not mode & stat.S_ISUID
