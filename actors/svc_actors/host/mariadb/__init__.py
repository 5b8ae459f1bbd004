"""The MariaDB server of the sites."""

from svc_actors.host.mariadb.server import SERVICE, MariaDb

__all__ = ["SERVICE", "MariaDb"]
