"""The sites' MariaDB."""

from svc_actors.host.mariadb.server import SERVICE, MariaDb

__all__ = ["SERVICE", "MariaDb"]
