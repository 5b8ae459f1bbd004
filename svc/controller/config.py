"""What the controller is told when it starts, and nothing that can change while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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

    @property
    def public_url(self) -> str:
        return f"https://{self.public_host}:{self.api_port}"
