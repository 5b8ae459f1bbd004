"""The sites' PostgreSQL, which is not the panel's own."""

from svc_webhost.postgres.server import SERVICE, Postgres

__all__ = ["SERVICE", "Postgres"]
