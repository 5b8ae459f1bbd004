"""What the operations of identity need of the service that they are part of."""

from __future__ import annotations

from typing import Protocol

from svc.identity.passwords import Passwords
from svc.registry.operation import Services
from svc.registry.realm import Realm
from svc_actors.store import EventLog


class IdentityServices(Services, Protocol):
    @property
    def realm(self) -> Realm: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def passwords(self) -> Passwords: ...
