"""What the controller is told when it starts, and nothing that can change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from svc_actors.certificates.settings import AcmeSettings
from svc_actors.mail import MailSettings
from svc_actors.webhooks.settings import WebhookSettings

HTTPS_PORT = 443
"""Left out of an origin (RFC 6454, section 6.2)."""


@dataclass(frozen=True)
class ControllerConfig:
    """`public_host` is the name or address by which browsers and nodes reach the controller; it goes into the server's
    certificate, into Origin checks and into the command that a new node runs."""

    data_dir: Path
    public_host: str
    bind_host: str = "0.0.0.0"  # noqa: S104 - nodes and browsers come from elsewhere
    api_port: int = 8443
    gateway_port: int = 8444
    operations_port: int = 8445
    """Loopback only: /metrics and /healthz."""
    heartbeat_seconds: float = 5.0
    certificate: tuple[Path, Path] | None = None
    """The operator's own, for browsers and clients of the API, and its key: PEM files. Without it they are shown one of
    the controller's authority."""
    acme: AcmeSettings | None = None
    """By whom such a certificate is made instead, and renewed; until there is the first, theirs is as without."""
    further_origins: tuple[str, ...] = ()
    """Where browsers see the pages besides, behind a proxy: https://panel.example"""
    mail: MailSettings | None = None
    """Where mail is handed over; without it the service sends none."""

    webhooks: WebhookSettings = field(default_factory=WebhookSettings)

    rescue_system: Path | None = None
    """The file of the rescue system that machines boot; what is not there is no rescue system."""

    otlp_endpoint: str | None = None
    """Of a collector of traces, by OTLP over HTTP: http://collector:4318. Without it nothing is traced."""
    trace_ratio: float = 1.0
    """The part of the traces that is kept."""

    @property
    def public_url(self) -> str:
        return f"https://{self.url_host}:{self.api_port}"

    @property
    def url_host(self) -> str:
        return f"[{self.public_host}]" if ":" in self.public_host else self.public_host

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of the service's own pages: by its public name, by those of this machine that its certificate
        has, by those that it was told, and by the one that links in mail lead to."""
        hosts = (self.url_host, "localhost", "127.0.0.1", "[::1]")
        default = [f"https://{host}" for host in hosts] if self.api_port == HTTPS_PORT else []
        linked = [self.mail.base_url] if self.mail is not None and self.mail.base_url else []
        return (*(f"https://{host}:{self.api_port}" for host in hosts), *default, *self.further_origins, *linked)
