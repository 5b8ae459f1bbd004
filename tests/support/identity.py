"""The people side of a controller in one process: the real database, registry and application, asked over ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import cache
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import trio

from svc.controller import holdings, projects, settings, setup
from svc.controller.catalogue import controller_registry
from svc.controller.machines import ssh_keys
from svc.controller.realm import REALM
from svc.controller.services import Controller, give_project
from svc.identity import (
    activity,
    alert_mail,
    alerts,
    events,
    password_links,
    people,
    second_factor,
    sign_in,
    support,
    tokens,
    users,
)
from svc.identity import mail as mail_operations
from svc.identity.authenticate import Authentication
from svc.identity.passwords import Passwords
from svc.registry.registry import Registry
from svc_actors.mail import MailSettings, Outbox, mail_settings
from svc_actors.mail.queue import ClaimedMail
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog
from svc_http.app import create_app
from tests.support.harness import PASSWORD, CheapPasswords, Client, Harness

ORIGIN = "https://controller.test"
MAIL = mail_settings({"SVC_MAIL_HOST": "smtp.example", "SVC_MAIL_SENDER": "svc@example.org"})
"""A relay that nobody asks: what is written to it stays in the queue."""
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJFnOqMCmlwqLxzbqZaClwIBQ0e5nZV1l1nkYIYY2NRL ada@laptop"
AREAS = (
    activity,
    alert_mail,
    alerts,
    events,
    holdings,
    mail_operations,
    password_links,
    people,
    projects,
    second_factor,
    settings,
    setup,
    sign_in,
    ssh_keys,
    support,
    tokens,
    users,
)


@dataclass(frozen=True)
class WrittenMail:
    """A mail that waits in the queue."""

    recipient: str
    message: EmailMessage

    @property
    def subject(self) -> str:
        return str(self.message["Subject"]).strip()  # A long one is folded before its first word, by Python 3.11.

    @property
    def text(self) -> str:
        return str(self.message.get_content())


@dataclass
class IdentityHarness(Harness[Controller]):
    registry: Registry[Controller]
    nursery: trio.Nursery

    async def person(self, email: str, role: str = "customer", *, password: str = PASSWORD) -> UUID:
        """A person, straight into the database; customers with a project of their own."""
        user_id = await super().person(email, role, password=password)
        if role == "customer":
            await self.database.execute(
                """
                WITH made AS (INSERT INTO projects (name) VALUES ($1) RETURNING id)
                INSERT INTO project_members (project_id, user_id) SELECT id, $2 FROM made
                """,
                f"project of {email}",
                user_id,
            )
        return user_id

    async def signed_in(self, email: str, *, password: str = PASSWORD, address: str = "192.0.2.1") -> Client:
        client = self.browser(address)
        answer = await client.post("/auth/login", {"email": email, "password": password})
        assert answer.status_code == 200, answer.text
        return client

    async def administrator(self) -> Client:
        """One who is new, signed in."""
        await self.person("root@example.org", "administrator")
        return await self.signed_in("root@example.org")

    async def mails(self) -> list[WrittenMail]:
        """The mails that wait, in the order in which they were written."""
        rows = await self.database.fetch("SELECT id, recipient, content FROM mails ORDER BY created_at")
        found = []
        for row in rows:
            content = self.services.outbox.content(ClaimedMail(row["id"], row["recipient"], row["content"]))
            found.append(WrittenMail(row["recipient"], message_from_bytes(content, policy=policy.default)))
        return found


@cache
def people_registry() -> Registry[Controller]:
    return Registry((operation for area in AREAS for operation in area.operations), REALM)


@asynccontextmanager
async def open_identity(
    database: Database,
    *,
    passwords: Passwords | None = None,
    services: Controller | None = None,
    mail: MailSettings | None = None,
) -> AsyncIterator[IdentityHarness]:
    """The people side; with `services`, the whole controller over them."""
    async with trio.open_nursery() as nursery:
        if services is None:
            log = EventLog(database)
            await nursery.start(log.run)
            registry = people_registry()
            services = cast(
                Controller,
                SimpleNamespace(
                    database=database,
                    events=log,
                    sealer=Sealer(bytes(32)),
                    passwords=passwords or CheapPasswords(),
                    outbox=Outbox(Sealer(bytes(32)), mail, ORIGIN),
                    realm=REALM,
                    person_added=give_project,
                ),
            )
        else:
            registry = controller_registry()
        app = create_app(registry, services, authenticator=Authentication(database, REALM), origins=(ORIGIN,))
        world = IdentityHarness(app, services, REALM, ORIGIN, registry, nursery)
        try:
            yield world
        finally:
            await world.close()
            nursery.cancel_scope.cancel()
