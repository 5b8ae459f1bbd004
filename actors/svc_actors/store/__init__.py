"""The state of the service: PostgreSQL driven by Trio, its migrations, the event log and the audit trail."""

from asyncpg import ExclusionViolationError, ForeignKeyViolationError, UniqueViolationError

from svc_actors.store.audit import Caller, Outcome, Target, Via, service_itself
from svc_actors.store.database import Database, DatabaseStatistics
from svc_actors.store.driver import Record
from svc_actors.store.dump import DumpError, dump, is_empty, load
from svc_actors.store.embedded import (
    OWNER_VARIABLE,
    URL_VARIABLE,
    DatabaseStartError,
    DatabaseUrls,
    database_urls,
    embedded,
    reachable_urls,
    require_known_cluster,
)
from svc_actors.store.events import (
    Event,
    EventKind,
    EventLog,
    EventLogStatistics,
    NewEvent,
    PositionLost,
    SlowReader,
    Subscription,
    append,
)
from svc_actors.store.exclusive import AnotherServiceError, exclusive
from svc_actors.store.failures import DISK_FULL, Collision, disk_full
from svc_actors.store.lanes import LANE, Lane, enter_lane
from svc_actors.store.listening import Notification, NotificationKind
from svc_actors.store.loops import LoopAlert, Loops, ServiceLoop, keep_repeating, keep_running
from svc_actors.store.marks import CommitMarks, SteppedBackError, forget_marks, marked
from svc_actors.store.migrate import (
    CONTROLLER_SCHEMA,
    PANEL_SCHEMA,
    Component,
    Migration,
    MigrationError,
    grant_service,
    known_migrations,
    migrate,
    newest_numbers,
    prepare_schema,
    unapplied,
)
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.sequencing import Retention
from svc_actors.store.server_folder import DatabaseInUseError
from svc_actors.store.transactions import Queryable, Session, Transaction

__all__ = [
    "CONTROLLER_SCHEMA",
    "DISK_FULL",
    "LANE",
    "OWNER_VARIABLE",
    "PANEL_SCHEMA",
    "URL_VARIABLE",
    "AnotherServiceError",
    "Caller",
    "Collision",
    "CommitMarks",
    "Component",
    "Database",
    "DatabaseInUseError",
    "DatabaseStartError",
    "DatabaseStatistics",
    "DatabaseUrls",
    "DumpError",
    "Event",
    "EventKind",
    "EventLog",
    "EventLogStatistics",
    "ExclusionViolationError",
    "ForeignKeyViolationError",
    "Lane",
    "LoopAlert",
    "Loops",
    "Migration",
    "MigrationError",
    "NewEvent",
    "Notification",
    "NotificationKind",
    "Outcome",
    "PositionLost",
    "Queryable",
    "Record",
    "Retention",
    "ServiceLoop",
    "Session",
    "SlowReader",
    "SteppedBackError",
    "Subscription",
    "Target",
    "Transaction",
    "UniqueViolationError",
    "Via",
    "append",
    "background_nursery",
    "database_urls",
    "disk_full",
    "dump",
    "embedded",
    "enter_lane",
    "exclusive",
    "forget_marks",
    "grant_service",
    "is_empty",
    "keep_repeating",
    "keep_running",
    "known_migrations",
    "load",
    "marked",
    "migrate",
    "newest_numbers",
    "prepare_schema",
    "reachable_urls",
    "require_known_cluster",
    "service_itself",
    "unapplied",
]
