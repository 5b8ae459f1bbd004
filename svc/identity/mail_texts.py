"""What mail to people says: plain text, in the service's name.

Each gives the subject and the text. Whatever comes from people is on a line of its own, and made one line.
"""

from __future__ import annotations

from datetime import datetime

from svc.identity.settings import Settings
from svc_actors.mail.messages import one_line


def link(base_url: str, token: str) -> str:
    """Behind `#`, so that no server and no proxy on the way writes the token into its log."""
    return f"{base_url}/#/set-password?token={token}"


def invitation(settings: Settings, name: str, email: str, url: str, until: datetime) -> tuple[str, str]:
    return f"Your account at {settings.service_name}", _text(
        settings,
        f"Hello {one_line(name)},",
        f"you have an account at {settings.service_name}. To choose its password, open",
        f"    {url}",
        f"The link works once, until {_time(until)}. You sign in as {email}.",
        "If you did not expect this, do nothing: without a password nobody can use the account.",
    )


def password_reset(settings: Settings, name: str, url: str, until: datetime) -> tuple[str, str]:
    return f"Choose a new password for {settings.service_name}", _text(
        settings,
        f"Hello {one_line(name)},",
        f"somebody, most likely you, asked for a new password at {settings.service_name}. To choose one, open",
        f"    {url}",
        f"The link works once, until {_time(until)}. Every browser is signed out when it is used.",
        "If it was not you, do nothing: your password stays as it is.",
    )


def _text(settings: Settings, *paragraphs: str) -> str:
    contact = [f"Questions: {settings.support_contact}"] if settings.support_contact else []
    return "\n\n".join([*paragraphs, *contact]) + "\n"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
