"""Databases of sites: what is recorded of them, and engines that agree with it."""

from svc_actors.panel.databases.agreeing import RESUME_SECONDS, SiteDatabases
from svc_actors.panel.databases.records import DatabaseRow, DatabaseUserRow
from svc_actors.panel.databases.states import DatabaseStatus

__all__ = ["RESUME_SECONDS", "DatabaseRow", "DatabaseStatus", "DatabaseUserRow", "SiteDatabases"]
