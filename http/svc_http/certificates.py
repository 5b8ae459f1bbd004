"""The certificates that an HTTPS listener shows, reloaded when their files change.

Programs that renew a certificate (the service itself, certbot, a script) replace its files and need not notify the
listener. Each handshake uses the current contexts, and open connections stay open. Files that cannot be read or do not
match (only one of the two is replaced yet) change nothing: the previous certificate is still shown, and the problem is
reported.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import structlog
import trio
from cryptography import x509

LOOK_EVERY: Final = 2.0
_EXPIRES_SOON: Final = timedelta(days=14)
"""ACME clients renew 30 days before the certificate expires: with 14 days left, the renewal has failed more than
once."""

log = structlog.get_logger("svc.http.certificates")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the certificate with its chain, and its private key."""

    certificate: Path
    key: Path


def expires_soon(certificate: x509.Certificate) -> bool:
    """Whether the certificate should have been renewed by now: 14 days before it expires, or for a short-lived one when
    a sixth of its lifetime is left."""
    end = certificate.not_valid_after_utc
    return end - datetime.now(UTC) <= min(_EXPIRES_SOON, (end - certificate.not_valid_before_utc) / 6)


class Certificates:
    """`shown` is the default; clients that ask for one of `named` (server name indication, RFC 6066) get that one.
    `preferred` replaces `shown` as soon as it exists."""

    def __init__(
        self, shown: TlsFiles, named: Mapping[str, TlsFiles] | None = None, *, preferred: TlsFiles | None = None
    ) -> None:
        self._files: dict[str | None, TlsFiles] = {None: shown}
        self._files.update(named or {})
        self._preferred = preferred
        self._contexts: dict[str | None, ssl.SSLContext] = {}
        self._read: dict[str | None, tuple[object, ...]] = {}
        self._shown: dict[str, x509.Certificate] = {}

    @property
    def ends(self) -> dict[str, datetime]:
        """The end of each certificate shown, by its files."""
        return {file: certificate.not_valid_after_utc for file, certificate in self._shown.items()}

    def context(self, bare: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """The listener's context. `bare` creates one that has everything but a certificate."""
        self._bare = bare
        for name in self._files:
            self._contexts[name] = self._load(name)
        self._contexts[None].sni_callback = self._choose
        return self._contexts[None]

    async def watch(self, tell: Callable[[str | None], Awaitable[None]]) -> None:
        """Check the files for ever. `tell` gets the problem, or None, at the start and whenever that changes."""
        told: str | None = ""
        while True:
            problem = await self.look()
            if problem != told:
                await tell(problem)
                told = problem
            await trio.sleep(LOOK_EVERY)

    async def look(self) -> str | None:
        """Load changed files. Returns what is wrong with the files, if anything."""
        return await trio.to_thread.run_sync(self._look)

    def _look(self) -> str | None:
        problems = []
        for name in self._files:
            files = self._current(name)
            try:
                if self._signature(files) != self._read[name]:
                    self._contexts[name] = self._load(name)
                    log.info("certificate.replaced", file=str(files.certificate))
                problems += self._expiry(files)
            except (OSError, ValueError) as error:
                problems.append(f"{files.certificate} cannot be used; the previous certificate stays in use: {error}")
        return "; ".join(problems) or None

    def _load(self, name: str | None) -> ssl.SSLContext:
        files = self._current(name)
        signature = self._signature(files)
        context = self._bare()
        context.load_cert_chain(files.certificate, files.key)
        self._read[name] = signature
        self._shown[str(files.certificate)] = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        return context

    def _current(self, name: str | None) -> TlsFiles:
        preferred = self._preferred if name is None else None
        return preferred if preferred is not None and preferred.certificate.exists() else self._files[name]

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._contexts.get(name, self._contexts[None])

    def _expiry(self, files: TlsFiles) -> list[str]:
        certificate = self._shown[str(files.certificate)]
        if not expires_soon(certificate):
            return []
        return [f"{files.certificate} ends on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC and was not renewed"]

    @staticmethod
    def _signature(files: TlsFiles) -> tuple[object, ...]:
        """Changes when a file is written or replaced, also through a link."""
        found = [path.stat() for path in (files.certificate, files.key)]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
