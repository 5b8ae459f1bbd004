"""The controller's configuration, which is fixed from its start to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from svc_actors.certificates.settings import AcmeSettings
from svc_actors.mail import MailSettings
from svc_actors.webhooks.settings import WebhookSettings

HTTPS_PORT = 443
"""An origin leaves this port out (RFC 6454, section 6.2)."""


@dataclass(frozen=True)
class ControllerConfig:
    """`public_host` is the name or address at which browsers and nodes reach the controller. It is in the server's
    certificate, in Origin checks and in the command that a new node runs."""

    data_dir: Path
    public_host: str
    bind_host: str = "0.0.0.0"  # noqa: S104 - nodes and browsers come from elsewhere
    api_port: int = 8443
    gateway_port: int = 8444
    operations_port: int = 8445
    """Loopback only: /metrics and /healthz."""
    heartbeat_seconds: float = 5.0
    certificate: tuple[Path, Path] | None = None
    """The operator's own certificate for browsers and API clients, and its key: PEM files. Without them the
    controller's own authority signs a certificate."""
    acme: AcmeSettings | None = None
    """The ACME authority that issues and renews this certificate. Until the first one is issued, browsers are shown a
    certificate of the controller's own authority."""
    further_origins: tuple[str, ...] = ()
    """Further origins at which browsers see the pages, behind a proxy: https://panel.example"""
    mail: MailSettings | None = None
    """The relay for mail; without it the service sends none."""

    webhooks: WebhookSettings = field(default_factory=WebhookSettings)

    rescue_system: Path | None = None
    """The file of the rescue system that machines boot. Without it there is no rescue."""

    otlp_endpoint: str | None = None
    """A collector of traces, by OTLP over HTTP: http://collector:4318. Without it nothing is traced."""
    trace_ratio: float = 1.0
    """The fraction of traces that is kept."""

    @property
    def public_url(self) -> str:
        return f"https://{self.url_host}:{self.api_port}"

    @property
    def url_host(self) -> str:
        return f"[{self.public_host}]" if ":" in self.public_host else self.public_host

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of the service's own pages: those of its public name, of the loopback names in its certificate,
        of the configuration, and of the links in mail."""
        hosts = (self.url_host, "localhost", "127.0.0.1", "[::1]")
        default = [f"https://{host}" for host in hosts] if self.api_port == HTTPS_PORT else []
        linked = [self.mail.base_url] if self.mail is not None and self.mail.base_url else []
        return (*(f"https://{host}:{self.api_port}" for host in hosts), *default, *self.further_origins, *linked)
