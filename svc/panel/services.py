"""What `Context.services` is for every handler of the panel."""

from __future__ import annotations

from dataclasses import dataclass

from svc.identity.passwords import Passwords
from svc.panel.realm import REALM
from svc.registry.realm import Realm
from svc_actors.mail import Outbox
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog


@dataclass(frozen=True)
class Panel:
    database: Database
    events: EventLog
    sealer: Sealer
    passwords: Passwords
    outbox: Outbox
    realm: Realm = REALM
