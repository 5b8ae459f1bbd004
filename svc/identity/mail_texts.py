"""The texts of mails to people: plain text, in the service's name.

Each function returns the subject and the text. Text that people entered is on a line of its own, and is reduced to one
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from svc.identity.settings import Settings
from svc_actors.mail.messages import one_line
from svc_actors.store import Record

_MOST_LINES: Final = 50


def link(base_url: str, token: str) -> str:
    """The link with the token in its fragment, behind `#`: browsers send no fragment, so the token is in no log of a
    server or proxy."""
    return f"{base_url}/#/set-password?token={token}"


def invitation(settings: Settings, name: str, email: str, url: str, until: datetime) -> tuple[str, str]:
    return f"Your account at {settings.service_name}", body(
        settings,
        f"Hello {one_line(name)},",
        f"you have an account at {settings.service_name}. To choose its password, open",
        f"    {url}",
        f"The link works once, until {utc(until)}. You sign in as {email}.",
        "If you did not expect this, do nothing: without a password nobody can use the account.",
    )


def member_invitation(
    settings: Settings, name: str, account: str, domain: str | None, role: str, url: str, until: datetime | None
) -> tuple[str, str]:
    """`domain` None: the invitation is to the whole account. `until`: given if the link sets a first password; the link
    is valid until then."""
    what = f"the site {one_line(domain)}" if domain is not None else "their sites"
    ways = [f"To see the invitation and accept it, sign in at\n\n    {url}"]
    if until is not None:
        ways = [
            f"To choose a password, open\n\n    {url}",
            f"The link works once, until {utc(until)}. Then sign in, and accept the invitation there.",
        ]
    return f"{one_line(account)} invites you at {settings.service_name}", body(
        settings,
        f"Hello {one_line(name)},",
        f"{one_line(account)} invites you to work on {what} at {settings.service_name}, as {role}.",
        *ways,
        "If you did not expect this, do nothing: nobody has to accept.",
    )


def password_reset(settings: Settings, name: str, url: str, until: datetime) -> tuple[str, str]:
    return f"Choose a new password for {settings.service_name}", body(
        settings,
        f"Hello {one_line(name)},",
        f"somebody, most likely you, asked for a new password at {settings.service_name}. To choose one, open",
        f"    {url}",
        f"The link works once, until {utc(until)}. Every browser is signed out when it is used.",
        "If it was not you, do nothing: your password stays as it is.",
    )


def sign_in(
    settings: Settings, name: str, at: datetime, address: str, browser: str, what_is_new: str, url: str
) -> tuple[str, str]:
    """`browser` is what the browser says of itself, which anybody can forge."""
    return f"New sign-in to {settings.service_name}", body(
        settings,
        f"Hello {one_line(name)},",
        f"somebody signed in to your account with your password, from {what_is_new} that we do not know yet.",
        f"    Time:     {utc(at)}\n    Address:  {one_line(address)}\n    Browser:  {_printable(browser)}",
        f"If it was you, there is nothing to do. If not, choose another password at once: {url}",
    )


def second_factor(
    settings: Settings, name: str, what: str, at: datetime, address: str | None, url: str
) -> tuple[str, str]:
    """`what` is the sentence of `notices` that says what changed. If `address` is None, the mail names no address."""
    where = [f"    Address:  {one_line(address)}"] if address is not None else []
    return f"The second factor of your account at {settings.service_name}", body(
        settings,
        f"Hello {one_line(name)},",
        what,
        "\n".join([f"    Time:     {utc(at)}", *where]),
        f"If you did not expect this, write to us, and choose another password at once: {url}",
    )


def alerts(settings: Settings, url: str, opened: Sequence[Record], closed: Sequence[Record]) -> tuple[str, str]:
    """`opened` and `closed` are rows of alerts, each with `severity`, `message` and `at`."""
    counts = [f"{len(rows)} {word}" for rows, word in ((opened, "opened"), (closed, "closed")) if rows]
    if len(opened) + len(closed) == 1:
        [row] = [*opened, *closed]
        about = f"{'closed: ' if closed else ''}{row['severity']}: {row['message']}"
    else:
        grave = sum(row["severity"] == "critical" for row in opened)
        about = f"alerts: {', '.join(counts)}" + (f", {grave} critical" if grave else "")
    listed = [_listed(title, rows) for title, rows in (("Opened", opened), ("Closed", closed)) if rows]
    return f"{settings.service_name}: {about}", "\n\n".join([*listed, f"All open alerts: {url}"]) + "\n"


def _listed(title: str, rows: Sequence[Record]) -> str:
    lines = [f"  {utc(row['at'])}  {row['severity']:8}  {one_line(row['message'], 500)}" for row in rows[:_MOST_LINES]]
    further = [f"  and {len(rows) - _MOST_LINES} more"] if len(rows) > _MOST_LINES else []
    return "\n".join([f"{title}:", *lines, *further])


def _printable(text: str) -> str:
    return one_line("".join(sign if " " <= sign <= "~" else "?" for sign in text), 200)


def body(settings: Settings, *paragraphs: str) -> str:
    contact = [f"Questions: {settings.support_contact}"] if settings.support_contact else []
    return "\n\n".join([*paragraphs, *contact]) + "\n"


def utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
