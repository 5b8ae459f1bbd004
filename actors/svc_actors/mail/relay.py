"""One session with the SMTP relay: the standard library's smtplib, in a thread.

Invariants:
- answers about a mail are distinguished from failures of the session: a 5xx to the recipient or to the text is final
  for that mail, a 4xx is not, and everything else (no connection, a certificate that does not verify, a refused
  password or sender, a 421, with which the relay ends the session) says nothing about the mail;
- every call ends: each answer within `ANSWER_SECONDS`, a mail within `MAIL_SECONDS`, or more if it is large. When a
  thread is abandoned its socket is shut down, so that it sends nothing later.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from svc_actors.mail.messages import one_line
from svc_actors.mail.settings import MailSettings, Security

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ANSWER_SECONDS: Final = 20.0
CONNECT_SECONDS: Final = 60.0
MAIL_SECONDS: Final = 90.0
_QUIT_SECONDS: Final = 3.0
_LEAST_RATE: Final = 65536
"""The rate, in bytes a second, from which the time limit of a large mail is computed."""
_CLOSING: Final = 421
_PIECE: Final = 65536
_LONGEST_REASON: Final = 300

T = TypeVar("T")


class RelayError(Exception):
    """The session with the relay failed; the message is the reason, for people to read."""


@dataclass(frozen=True)
class Sent:
    """The relay has accepted the mail and is responsible for it."""


@dataclass(frozen=True)
class Deferred:
    """4xx: not now. `reason` may name the recipient."""

    code: int
    reason: str


@dataclass(frozen=True)
class Rejected:
    """5xx: never."""

    code: int
    reason: str


Outcome = Sent | Deferred | Rejected


class Relay:
    """Opened by `Relay.open`. One task uses it."""

    def __init__(self, settings: MailSettings, threads: trio.CapacityLimiter) -> None:
        self._settings = settings
        self._threads = threads
        self._smtp: smtplib.SMTP | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: MailSettings, threads: trio.CapacityLimiter) -> AsyncIterator[Relay]:
        """A session, connected and signed in. Raises `RelayError`."""
        relay = cls(settings, threads)
        relay._smtp = await relay._in_thread(lambda: _connected(settings), CONNECT_SECONDS)
        try:
            yield relay
        finally:
            await relay._close()

    async def send(self, recipient: str, content: bytes, *, sender: str | None = None) -> Outcome:
        """Send one mail. `sender`: the sender of the envelope, if it is not the service's own; a refusal of this sender
        is an answer about the mail. Raises `RelayError` when the session fails: the relay may have the mail or not."""
        smtp = self._smtp
        assert smtp is not None

        def work() -> Outcome:
            try:
                return _sent(smtp, sender or self._settings.sender.addr_spec, recipient, content)
            except smtplib.SMTPSenderRefused as refused:
                if sender is None or refused.smtp_code == _CLOSING or not 400 <= refused.smtp_code < 600:
                    raise
                return _judged(refused.smtp_code, refused.smtp_error)

        return await self._in_thread(work, MAIL_SECONDS + len(content) / _LEAST_RATE)

    async def _in_thread(self, work: Callable[[], T], seconds: float) -> T:
        try:
            with trio.move_on_after(seconds):
                return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        except trio.Cancelled:
            self._shut_down()
            raise
        except (OSError, ValueError) as error:  # SMTPException is an OSError.
            raise RelayError(f"{self._settings.host}:{self._settings.port}: {_words(error)}") from error
        self._shut_down()
        raise RelayError(f"{self._settings.host}:{self._settings.port}: no answer within {seconds:g} seconds")

    async def _close(self) -> None:
        """Send QUIT, within `_QUIT_SECONDS`. The relay does not depend on it."""
        smtp = self._smtp
        assert smtp is not None
        with trio.move_on_after(_QUIT_SECONDS, shield=True), suppress(OSError):
            await trio.to_thread.run_sync(smtp.quit, abandon_on_cancel=True, limiter=self._threads)
        self._shut_down()

    def _shut_down(self) -> None:
        smtp = self._smtp
        sock = getattr(smtp, "sock", None)
        if sock is not None:
            with suppress(OSError):
                # The shutdown of the plain socket is used: after the shutdown of an SSLSocket, a thread that is still
                # writing would send cleartext.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _connected(settings: MailSettings) -> smtplib.SMTP:
    context = ssl.create_default_context(cafile=settings.ca_file)
    own_name = settings.sender.domain
    if settings.security is Security.TLS:
        smtp: smtplib.SMTP = _PiecewiseOverTls(
            settings.host, settings.port, own_name, timeout=ANSWER_SECONDS, context=context
        )
    else:
        smtp = _Piecewise(settings.host, settings.port, own_name, timeout=ANSWER_SECONDS)
    try:
        if settings.security is Security.STARTTLS:
            smtp.starttls(context=context)
        if settings.username is not None and settings.password_file is not None:
            smtp.login(settings.username, settings.password_file.read_text().rstrip("\r\n"))
        else:
            smtp.ehlo_or_helo_if_needed()
    except BaseException:
        smtp.close()
        raise
    return smtp


class _Piecewise(smtplib.SMTP):
    """Sends in pieces. The socket's timeout limits one call of `send`, and smtplib sends a mail, however large, in one
    call."""

    def send(self, s: ReadableBuffer | str) -> None:
        whole = memoryview(s.encode(self.command_encoding) if isinstance(s, str) else s)
        for start in range(0, len(whole), _PIECE):
            super().send(whole[start : start + _PIECE])


class _PiecewiseOverTls(_Piecewise, smtplib.SMTP_SSL):
    pass


def _sent(smtp: smtplib.SMTP, sender: str, recipient: str, content: bytes) -> Outcome:
    eight_bits = () if content.isascii() or not smtp.has_extn("8bitmime") else ("body=8bitmime",)
    try:
        smtp.sendmail(sender, [recipient], content, eight_bits)
    except smtplib.SMTPRecipientsRefused as refused:
        [(code, text)] = refused.recipients.values()
        return _judged(code, text)
    except smtplib.SMTPDataError as refused:
        return _judged(refused.smtp_code, refused.smtp_error)
    return Sent()


def _judged(code: int, text: bytes | str) -> Outcome:
    """Raises `SMTPServerDisconnected` for the end of the session, without the answer's text: it may name the
    recipient."""
    if code == _CLOSING:
        raise smtplib.SMTPServerDisconnected(f"{_CLOSING}: it has ended the session")
    reason = _reply(code, text)
    return Rejected(code, reason) if 500 <= code < 600 else Deferred(code, reason)


def _words(error: Exception) -> str:
    match error:
        case smtplib.SMTPSenderRefused():
            return f"it rejected the sender {error.sender}: {_reply(error.smtp_code, error.smtp_error)}"
        case smtplib.SMTPResponseException():
            return _reply(error.smtp_code, error.smtp_error)
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}"
        case UnicodeError():
            return "user name and password have to be ASCII"
        case OSError() if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        case _:
            return one_line(str(error) or type(error).__name__, _LONGEST_REASON)


def _reply(code: int, text: bytes | str) -> str:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return one_line(f"{code} {words}", _LONGEST_REASON)
