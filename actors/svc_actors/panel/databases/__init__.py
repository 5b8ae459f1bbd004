"""Databases of sites: their records, and engines that are made to agree with them."""

from svc_actors.panel.databases.agreeing import RESUME_SECONDS, SiteDatabases
from svc_actors.panel.databases.records import DatabaseRow, DatabaseUserRow
from svc_actors.panel.databases.states import DatabaseStatus

__all__ = ["RESUME_SECONDS", "DatabaseRow", "DatabaseStatus", "DatabaseUserRow", "SiteDatabases"]
