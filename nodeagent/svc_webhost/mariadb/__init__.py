"""The MariaDB server of the sites."""

from svc_webhost.mariadb.server import SERVICE, MariaDb

__all__ = ["SERVICE", "MariaDb"]
