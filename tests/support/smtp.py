"""A real SMTP server on a port of its own (aiosmtpd, in a thread), which does what a test tells it to."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import trio
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from svc_actors.mail import MailSettings, mail_settings
from svc_http.certificates import TlsFiles
from tests.support.stack import free_port

WAIT = 60.0
VANISH = "vanish"
"""In place of an answer: the connection ends, and nobody knows whether the mail was taken."""


@dataclass(frozen=True)
class Received:
    """`raw` is what came after DATA."""

    sender: str
    recipients: list[str]
    raw: bytes
    encrypted: bool
    signed_in: bool

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.raw, policy=policy.default)

    @property
    def text(self) -> str:
        return str(self.message.get_content())


@dataclass
class MailServer:
    """`to_recipients` and `to_texts` are answers to the next RCPT and DATA commands, in their order; past them all is
    taken. `texts` counts all that came to DATA, taken or not. After `per_session` mails RCPT is answered with 421, or
    not at all if `vanishes`."""

    token: trio.lowlevel.TrioToken
    port: int = field(default_factory=free_port)
    tls: TlsFiles | None = None
    implicit: bool = False
    login: tuple[str, str] | None = None
    to_recipients: list[str] = field(default_factory=list)
    to_texts: list[str] = field(default_factory=list)
    per_session: int | None = None
    vanishes: bool = False
    texts: list[str] = field(default_factory=list)
    _arrived: list[Received] = field(default_factory=list)
    _news: trio.Event = field(default_factory=trio.Event)
    _taken: Counter[Session] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _controller: Controller | None = None

    def start(self) -> None:
        context = None
        if self.tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        options: dict[str, Any] = {}
        if context is not None and not self.implicit:
            options |= {"tls_context": context, "require_starttls": True}
        if self.login is not None:
            options |= {"authenticator": self._sign_in, "auth_required": True, "auth_require_tls": not self.implicit}
        if self.implicit:
            options |= {"ssl_context": context}
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port, **options)
        self._controller.start()

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    def settings(self, **more: str) -> MailSettings:
        given = {
            "SVC_MAIL_HOST": "localhost",
            "SVC_MAIL_PORT": str(self.port),
            "SVC_MAIL_SENDER": "Example Hosting <svc@example.org>",
            "SVC_MAIL_SECURITY": "none" if self.tls is None else "tls" if self.implicit else "starttls",
        }
        settings = mail_settings(given | {f"SVC_MAIL_{name.upper()}": value for name, value in more.items()})
        assert settings is not None
        return settings

    async def next(self) -> Received:
        """The next mail that was taken."""
        with trio.fail_after(WAIT):
            while not self._arrived:
                self._news = trio.Event()
                await self._news.wait()
        return self._arrived.pop(0)

    @property
    def waiting(self) -> int:
        """Mails taken that no test has looked at."""
        return len(self._arrived)

    # What follows runs in the server's thread.

    def _sign_in(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: Any) -> AuthResult:
        wanted = self.login
        right = (
            wanted is not None
            and isinstance(given, LoginPassword)
            and (given.login, given.password) == (wanted[0].encode(), wanted[1].encode())
        )
        return AuthResult(success=right, handled=right)

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.per_session is not None and self._taken[session] >= self.per_session:
            if self.vanishes:
                _vanish(server)
            return "421 too many mails in a session"
        self._taken[session] += 1
        with self._lock:
            answer = self.to_recipients.pop(0) if self.to_recipients else "250 OK"
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        raw = cast(bytes, envelope.content)
        with self._lock:
            answer = self.to_texts.pop(0) if self.to_texts else "250 OK"
            self.texts.append(str(message_from_bytes(raw)["Message-ID"]))
        if answer.startswith("250") or answer == VANISH:
            mail = Received(
                envelope.mail_from or "",
                list(envelope.rcpt_tos),
                raw,
                encrypted=session.ssl is not None or self.implicit,
                signed_in=bool(session.authenticated),
            )
            self.token.run_sync_soon(self._take, mail)
        if answer == VANISH:
            _vanish(server)
        return answer

    def _take(self, mail: Received) -> None:
        self._arrived.append(mail)
        self._news.set()


def _vanish(server: SMTP) -> None:
    assert server.transport is not None
    server.transport.abort()  # type: ignore[attr-defined]


@asynccontextmanager
async def mail_server(
    *, tls: TlsFiles | None = None, implicit: bool = False, login: tuple[str, str] | None = None
) -> AsyncIterator[MailServer]:
    server = MailServer(trio.lowlevel.current_trio_token(), tls=tls, implicit=implicit, login=login)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def password_file(folder: Path, password: str) -> str:
    path = folder / "smtp-password"
    path.write_text(password + "\n")
    return str(path)
