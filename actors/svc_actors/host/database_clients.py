"""How programs of sites find the database servers as `localhost`, which is where sites that come from elsewhere look.

The servers listen in the panel's own folder and nowhere else. What is told of that: PHP by a folder of settings that it
reads beside the server's (mysqli, PDO), programs with MariaDB's client library by a my.cnf, others by what they read of
the environment. A database driver that connects by TCP (node's) has to be given the socket.
"""

from __future__ import annotations

from typing import Final

from svc_actors.host.folders import HostFolders
from svc_actors.host.text_files import hold

HOST: Final = "localhost"
"""Where sites are told that their database is."""


def settings_of_php(folders: HostFolders) -> str:
    """For PHP_INI_SCAN_DIR. Nothing before the colon: the server's own settings are read first."""
    return f":{folders.client_settings}"


def environment(folders: HostFolders) -> dict[str, str]:
    return {
        "PHP_INI_SCAN_DIR": settings_of_php(folders),
        "MYSQL_HOME": str(folders.client_settings),
        "MYSQL_UNIX_PORT": str(folders.mariadb_socket),
        "PGHOST": str(folders.postgres_sockets),
    }


def prepare(folders: HostFolders) -> None:
    """The settings are there. Blocks."""
    folders.client_settings.mkdir(mode=0o755, exist_ok=True)
    socket = folders.mariadb_socket
    hold(
        folders.client_settings / "databases.ini",
        f'mysqli.default_socket = "{socket}"\npdo_mysql.default_socket = "{socket}"\n',
    )
    hold(folders.client_settings / "my.cnf", f"[client]\nsocket = {socket}\n")
