"""sshd's configuration: its settings, and an /etc in which only root, sshd and the logins exist.

The server sees that folder instead of the machine's /etc (`enter`), so no account of the machine can sign in to it
whatever its password, and no login of a site becomes an account of the machine. sshd reads it for each connection.

A login has the user id of its site. `*` as password matches nothing but allows keys; `!` would lock both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_webhost.sftp.accept import LOGIN_SECONDS
from svc_webhost.sftp.model import AccessKind, SftpLogin

ROOTS: Final = "/run/sftp"
"""A path in the server's own view: the folder that contains, for each login, a folder owned by root, which is the
chroot of the login's session. In this folder, `site` is the folder that the login sees."""
SITE: Final = "site"
SHELLS: Final = "/run/shells"
"""A path in the same view: the chroot of logins with a shell, in which sshd executes `sftp/shell/enter.py`."""
_SHELL_GROUP: Final = "shell"
_SHELL_GID: Final = 65533
DEFAULT_PORT: Final = 2222
_SFTP_SERVER: Final = "/usr/lib/openssh/sftp-server"
"""Debian's program, for SFTP in a shell; for other logins ForceCommand decides."""
HOST_KEY_TYPES: Final = ("ed25519", "ecdsa", "rsa")


@dataclass(frozen=True)
class SftpSettings:
    port: int = DEFAULT_PORT


def sshd_configuration(settings: SftpSettings, folder: Path) -> str:
    """The text of sshd_config. All paths except those of host keys are in the server's own view. `internal-sftp` is
    part of sshd: nothing in the chroot is executed, except for logins with a shell. Forwarding is off: a site's
    programs can reach by themselves what the site may reach."""
    keys = "\n".join(f"HostKey {folder}/host_{each}_key" for each in HOST_KEY_TYPES)
    return f"""\
Port {settings.port}
{keys}
PidFile none
LogLevel INFO
UseDNS no
VersionAddendum none

AuthenticationMethods any
PubkeyAuthentication yes
AuthorizedKeysFile /etc/keys/%u
PasswordAuthentication yes
PermitEmptyPasswords no
KbdInteractiveAuthentication no
HostbasedAuthentication no
UsePAM no
PermitRootLogin no
StrictModes yes
RequiredRSASize 2048

MaxAuthTries 4
MaxSessions 10
LoginGraceTime {LOGIN_SECONDS}
ClientAliveInterval 60
ClientAliveCountMax 3

DisableForwarding yes
AllowAgentForwarding no
AllowTcpForwarding no
AllowStreamLocalForwarding no
X11Forwarding no
PermitTunnel no
GatewayPorts no
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
PrintLastLog no

ChrootDirectory {ROOTS}/%u
Subsystem sftp {_SFTP_SERVER}
ForceCommand internal-sftp -d /{SITE} -u 0022

Match Group {_SHELL_GROUP}
    ChrootDirectory {SHELLS}
    ForceCommand none
    PermitTTY yes
    AcceptEnv LANG LC_*
"""


def account_files(logins: Iterable[SftpLogin], sshd_uid: int) -> Mapping[str, str]:
    """The files of its /etc by name; shadow and the files in keys/ are not readable for everybody."""
    passwd = ["root:x:0:0:root:/:/usr/sbin/nologin", f"sshd:x:{sshd_uid}:65534::/run/sshd:/usr/sbin/nologin"]
    shadow = ["root:*:1::::::", "sshd:*:1::::::"]
    group = ["root:x:0:", "nogroup:x:65534:"]
    files = {"nsswitch.conf": "passwd: files\nshadow: files\ngroup: files\nhosts: files\n"}
    with_shell: list[str] = []
    for login in sorted(logins, key=lambda each: each.name):
        uid, shell = login.account.uid, login.kind is AccessKind.SHELL
        home, program = ("/", "/enter") if shell else (f"/{SITE}", "/usr/sbin/nologin")
        passwd.append(f"{login.name}:x:{uid}:{uid}::{home}:{program}")
        shadow.append(f"{login.name}:{login.password_hash or '*'}:1::::::")
        group.append(f"{login.name}:x:{uid}:")
        options = "restrict,pty" if shell else "restrict"
        files[f"keys/{login.name}"] = "".join(f"{options} {key}\n" for key in login.keys)
        if shell:
            with_shell.append(login.name)
    group.append(f"{_SHELL_GROUP}:x:{_SHELL_GID}:{','.join(with_shell)}")
    for name, lines in (("passwd", passwd), ("shadow", shadow), ("group", group)):
        files[name] = "".join(f"{line}\n" for line in lines)
    return files
