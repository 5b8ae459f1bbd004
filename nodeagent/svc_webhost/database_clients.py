"""Lets programs of sites find the database servers as `localhost`, where sites from other hosts expect them.

The servers listen in the panel's own folder only. PHP finds them through an extra folder of settings (mysqli, PDO),
programs with MariaDB's client library through a my.cnf, others through environment variables. A database driver that
connects by TCP (node's) must be given the socket.
"""

from __future__ import annotations

from typing import Final

from svc_common.durable import hold
from svc_webhost.folders import HostFolders

HOST: Final = "localhost"
"""The host name of the database servers, as sites use it."""


def settings_of_php(folders: HostFolders) -> str:
    """Value of PHP_INI_SCAN_DIR. The colon with nothing before it reads the server's own settings first."""
    return f":{folders.client_settings}"


def environment(folders: HostFolders) -> dict[str, str]:
    return {
        "PHP_INI_SCAN_DIR": settings_of_php(folders),
        "MYSQL_HOME": str(folders.client_settings),
        "MYSQL_UNIX_PORT": str(folders.mariadb_socket),
        "PGHOST": str(folders.postgres_sockets),
    }


def prepare(folders: HostFolders) -> None:
    """Write the settings. Blocks."""
    folders.client_settings.mkdir(mode=0o755, exist_ok=True)
    socket = folders.mariadb_socket
    hold(
        folders.client_settings / "databases.ini",
        f'mysqli.default_socket = "{socket}"\npdo_mysql.default_socket = "{socket}"\n',
    )
    hold(folders.client_settings / "my.cnf", f"[client]\nsocket = {socket}\n")
