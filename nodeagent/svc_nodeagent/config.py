"""The agent's data folder: its enrolment, and the certificate it shows to the controller.

identity.pem     private key and certificate in one file, so that a renewal replaces both by one rename (0600)
authority.pem    the controller's certificate authority, the only one trusted
enrolment.json   node id, and where the gateway is
journal          see journal.py
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from cryptography import x509

from svc_nodeagent.durable import write_whole
from svc_nodeagent.protocol import STREAM_ALPN, Wire


class NotEnrolled(Exception):  # noqa: N818 - named for what it says
    """The data folder holds no enrolment, or an incomplete one."""


class Enrolment(Wire):
    node_id: UUID
    gateway_host: str
    gateway_port: int


@dataclass(frozen=True)
class AgentFolder:
    path: Path

    @property
    def identity(self) -> Path:
        return self.path / "identity.pem"

    @property
    def next_identity(self) -> Path:
        """The file of a renewed identity with which no connection has been opened yet."""
        return self.path / "identity.next.pem"

    @property
    def enrolment_key(self) -> Path:
        """The file with the key of an enrolment that has no answer yet. If the request is repeated with the same key,
        the controller repeats its answer."""
        return self.path / "enrolment-key.pem"

    @property
    def authority(self) -> Path:
        return self.path / "authority.pem"

    @property
    def enrolment(self) -> Path:
        return self.path / "enrolment.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def read_enrolment(self) -> Enrolment:
        try:
            return Enrolment.model_validate_json(self.enrolment.read_bytes())
        except FileNotFoundError as error:
            raise NotEnrolled(
                f"{self.path} holds no enrolment; run the command that the controller shows for a new node"
            ) from error

    def write(self, file: Path, data: bytes) -> None:
        """Replace a file atomically: after a crash the file has its old content or its new content. It is readable by
        its owner alone."""
        write_whole(file, data, mode=0o600)


@dataclass(frozen=True)
class Identity:
    """A certificate ready for use: one TLS context for the control connection, one for streams."""

    control: ssl.SSLContext
    stream: ssl.SSLContext
    not_before: datetime
    not_after: datetime

    @classmethod
    def load(cls, file: Path, authority: Path) -> Identity:
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            contexts = [_context(file, authority, protocol) for protocol in ("http/1.1", STREAM_ALPN)]
        except FileNotFoundError as error:
            raise NotEnrolled(f"{file} is missing; enrol this node again") from error
        return cls(contexts[0], contexts[1], certificate.not_valid_before_utc, certificate.not_valid_after_utc)

    @property
    def renew_at(self) -> datetime:
        """When to renew the certificate: after two thirds of its lifetime."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3


def _context(identity: Path, authority: Path, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(identity)
    context.set_alpn_protocols([protocol])
    return context
