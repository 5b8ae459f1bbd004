"""Operations on the certificate that browsers and API clients are shown: its details, and ordering a new one by ACME at
once."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from svc.controller.config import ControllerConfig
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.certificates import CertificateRecord, CertificateWithKey, names_of, read_certificate
from svc_common.durable import write_whole
from svc_common.errors import conflict, not_ready

operations = Operations[Controller]()

NAME: Final = "service"
"""The name of the controller's certificate among those from ACME."""


class Source(StrEnum):
    """Where the certificate in use comes from: the controller's own authority, files of the operator, or ACME."""

    AUTHORITY = "authority"
    FILES = "files"
    ACME = "acme"


class AcmeState(StrEnum):
    """`waiting`: until the renewal is due. `failing`: the last attempt failed, and the next one is at `next_at`."""

    WAITING = "waiting"
    ORDERING = "ordering"
    FAILING = "failing"
    TERMS_NOT_AGREED = "terms_not_agreed"


class Certificate(Model):
    """`names` to `sha256` are of the certificate in use. The other fields are about ACME, and null if it is not used.
    `last_error`: what the authority said, if the last attempt failed."""

    source: Source
    names: list[str]
    issuer: str
    not_before: datetime
    not_after: datetime
    sha256: str
    directory: str | None = None
    state: AcmeState | None = None
    next_at: datetime | None = None
    failures: int | None = None
    last_error: str | None = None
    failed_at: datetime | None = None


def issued_file(data_dir: Path) -> Path:
    """The key, the certificate from ACME and its chain in one file, so that they are replaced together."""
    return data_dir / "tls" / "acme.pem"


def install(data_dir: Path, issued: CertificateWithKey) -> None:
    """Write a certificate to the file that the listener reads. The certificate is stored in the database; the file
    exists because OpenSSL reads certificates from files."""
    file = issued_file(data_dir)
    content = issued.key + issued.chain.encode()
    if file.exists() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(file, content, mode=0o600)


@operations.declare(
    "certificate.show",
    "The certificate of this service, and the state of its renewal",
    Route.get("/certificate"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show(context: Context[Controller], request: Empty) -> Certificate:
    config = context.services.config
    source, file = _shown(config)
    try:
        text = await trio.Path(file).read_bytes()
        shown = x509.load_pem_x509_certificate(text)
    except (OSError, ValueError) as error:
        raise not_ready(f"The certificate in {file} cannot be read: {error}") from error
    record = await read_certificate(context.services.database, NAME) if config.acme is not None else None
    return Certificate(
        source=source,
        names=names_of(shown),
        issuer=shown.issuer.rfc4514_string(),
        not_before=shown.not_valid_before_utc,
        not_after=shown.not_valid_after_utc,
        sha256=shown.fingerprint(hashes.SHA256()).hex(),
        directory=config.acme.directory if config.acme is not None else None,
        state=_state(config, record),
        next_at=record.due_at if record is not None and record.due_at > datetime.now(UTC) else None,
        failures=record.failures if record is not None else None,
        last_error=record.last_error if record is not None else None,
        failed_at=record.failed_at if record is not None else None,
    )


@operations.declare(
    "certificate.renew",
    "Request a new certificate by ACME now, or retry now",
    Route.post("/certificate/renew", status=202),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def renew(context: Context[Controller], request: Empty) -> None:
    keeper = context.services.certificate
    if keeper is None:
        raise conflict(
            "This service does not get its certificate by ACME.",
            hint="Configure it in the table [acme] of the configuration file.",
        )
    await keeper.renew(context.caller)


def _shown(config: ControllerConfig) -> tuple[Source, Path]:
    if config.acme is not None and issued_file(config.data_dir).exists():
        return Source.ACME, issued_file(config.data_dir)
    if config.certificate is not None:
        return Source.FILES, config.certificate[0]
    return Source.AUTHORITY, config.data_dir / "tls" / "server.pem"


def _state(config: ControllerConfig, record: CertificateRecord | None) -> AcmeState | None:
    if config.acme is None:
        return None
    if not config.acme.terms_agreed:
        return AcmeState.TERMS_NOT_AGREED
    if record is not None and record.failures:
        return AcmeState.FAILING
    return AcmeState.ORDERING if record is None or record.ordering else AcmeState.WAITING
