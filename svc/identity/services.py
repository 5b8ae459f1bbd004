"""What identity's operations need of the service they belong to."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from svc.identity.passwords import Passwords
from svc.registry.operation import Services
from svc.registry.principal import Role
from svc.registry.realm import Realm
from svc_actors.mail import Outbox
from svc_actors.store import EventLog, Transaction


class IdentityServices(Services, Protocol):
    @property
    def realm(self) -> Realm: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def passwords(self) -> Passwords: ...

    @property
    def outbox(self) -> Outbox: ...

    async def person_added(self, tx: Transaction, user_id: UUID, email: str, role: Role) -> None:
        """Give a new person their initial records, in the transaction that adds them."""
