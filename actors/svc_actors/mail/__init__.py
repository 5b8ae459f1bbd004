"""Outgoing mail: queued in the transaction of the change it reports, delivered to one SMTP relay."""

from svc_actors.mail.delivery import Delivery
from svc_actors.mail.queue import MailKind, MailState, NewMail, Outbox
from svc_actors.mail.relay import Relay, RelayError
from svc_actors.mail.settings import MAIL_VARIABLES, MailSettings, Security, mail_settings

__all__ = [
    "MAIL_VARIABLES",
    "Delivery",
    "MailKind",
    "MailSettings",
    "MailState",
    "NewMail",
    "Outbox",
    "Relay",
    "RelayError",
    "Security",
    "mail_settings",
]
