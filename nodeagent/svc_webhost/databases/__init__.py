"""The database servers of the sites, apart from the panel's own: the common part of all engines' drivers."""

from svc_webhost.databases.memory import Session
from svc_webhost.databases.names import (
    LABEL,
    DatabaseName,
    UserName,
    database_name,
    owner_of,
    site_prefix,
    user_name,
)
from svc_webhost.databases.passwords import native_hash, new_password, scram_verifier
from svc_webhost.databases.server import (
    CONNECTIONS,
    Access,
    Connections,
    DatabaseError,
    DatabaseServer,
    DatabaseServers,
    EngineKind,
    RunProgram,
    SiteFile,
)

__all__ = [
    "CONNECTIONS",
    "LABEL",
    "Access",
    "Connections",
    "DatabaseError",
    "DatabaseName",
    "DatabaseServer",
    "DatabaseServers",
    "EngineKind",
    "RunProgram",
    "Session",
    "SiteFile",
    "UserName",
    "database_name",
    "native_hash",
    "new_password",
    "owner_of",
    "scram_verifier",
    "site_prefix",
    "user_name",
]
