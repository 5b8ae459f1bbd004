"""Networks that webhooks may be delivered to besides the public Internet. Set by the server's operator, not the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_common.outbound import Network, networks

NETWORKS_VARIABLE: Final = "SVC_WEBHOOK_NETWORKS"
CA_FILE_VARIABLE: Final = "SVC_WEBHOOK_CA_FILE"


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """`networks` may be dialled although they are not public. `ca_file` replaces the system's authorities."""

    networks: tuple[Network, ...] = ()
    ca_file: Path | None = None


def webhook_settings(environ: Mapping[str, str]) -> WebhookSettings:
    """The settings of an environment. Raises ValueError, which says what to set."""
    ca_file = environ.get(CA_FILE_VARIABLE, "").strip()
    try:
        allowed = networks(environ.get(NETWORKS_VARIABLE, ""))
    except ValueError as error:
        raise ValueError(f"{NETWORKS_VARIABLE} has networks such as 10.20.0.0/16, with commas: {error}") from None
    return WebhookSettings(networks=allowed, ca_file=Path(ca_file) if ca_file else None)
