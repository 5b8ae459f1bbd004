"""The mail queue as administrators see it: waiting mails with the reason, sent mails, and a test mail."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc.identity.fields import Email
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.mail import MailKind, MailState, NewMail, queue
from svc_actors.store import Queryable, Target, Transaction, audit
from svc_common.errors import invalid

operations = Operations[IdentityServices]()

_TEST_LASTS: Final = timedelta(hours=1)
_SELECT: Final = """
SELECT id, kind, recipient, subject, state, attempts, error, created_at, ended_at, message_id,
       CASE WHEN state = 'queued' THEN attempt_at END AS next_attempt_at
FROM mails"""


class Mail(Model):
    """`error` is the relay's last answer, or why it could not be reached. The text is shown to nobody, since it may
    hold a link that sets a password."""

    id: UUID
    kind: MailKind
    recipient: str
    subject: str
    state: MailState
    attempts: int
    error: str | None
    created_at: datetime
    next_attempt_at: datetime | None
    ended_at: datetime | None
    message_id: str


class MailListRequest(PageRequest):
    state: MailState | None = None
    kind: MailKind | None = None


class MailTestRequest(Request):
    """Without `to`, the mail goes to the caller."""

    to: Email | None = None


class MailRequest(Request):
    id: UUID


@operations.declare(
    "mail.list",
    "Mail that waits, was sent or failed, the newest first",
    Route.get("/mails"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("created=created_at", "kind", "recipient", "state", "attempts", "error", "id"),
)
async def list_mails(context: Context[IdentityServices], request: MailListRequest) -> Page[Mail]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="mails",
        where=[
            equals("state", request.state),
            equals("kind", request.kind),
            contains(request.q, "recipient", "subject"),
        ],
        sortable={"created_at": "created_at"},
        default_sort="-created_at",
        request=request,
    )
    return Page[Mail].of([Mail(**dict(row)) for row in rows], total, request)


@operations.declare(
    "mail.test",
    "Send a test mail; `svc mail list` shows its delivery",
    Route.post("/mails/test", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def test(context: Context[IdentityServices], request: MailTestRequest) -> Mail:
    recipient = request.to or context.principal.email
    if recipient is None:
        raise invalid("The test mail has no recipient, and you have no email address; nothing was sent.")

    async def work(tx: Transaction) -> Mail:
        service = (await read_settings(tx)).service_name
        mail_id = await context.services.outbox.write(
            tx,
            NewMail(
                kind=MailKind.TEST,
                recipient=recipient,
                subject=f"{service}: a test of mail",
                text=f"Mail from {service} at {context.services.outbox.base_url} arrives.\n",
                lasts=_TEST_LASTS,
            ),
        )
        await audit.record(tx, context.caller, Target("mail", mail_id, recipient))
        return await _mail(tx, mail_id)

    return await context.services.database.transact(work)


@operations.declare(
    "mail.retry",
    "Retry a mail now that failed or waits",
    Route.post("/mails/{id}/retry"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def retry(context: Context[IdentityServices], request: MailRequest) -> Mail:

    async def work(tx: Transaction) -> Mail:
        await queue.retry(tx, request.id)
        mail = await _mail(tx, request.id)
        await audit.record(tx, context.caller, Target("mail", mail.id, mail.recipient))
        return mail

    return await context.services.database.transact(work)


async def _mail(queryable: Queryable, mail_id: UUID) -> Mail:
    return Mail(**dict(await queryable.fetchone(f"{_SELECT} WHERE id = $1", mail_id)))
