"""The panel's configuration, which is fixed from its start to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from svc_actors.certificates.settings import AcmeSettings
from svc_actors.mail import MailSettings
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.webhooks.settings import WebhookSettings
from svc_webhost.folders import HostFolders
from svc_webhost.knot.names import host_name
from svc_webhost.sftp import SftpSettings
from svc_webhost.wordpress import WordPressSource

HTTPS_PORT = 443


@dataclass(frozen=True)
class PanelConfig:
    """`public_host` is the name at which browsers reach the panel; the sites are served on the same host."""

    data_dir: Path
    public_host: str
    socket: Path
    """The socket on which the core listens: for the web tier and for `svc` on this server."""
    web_user: str = "svc-web"
    """The account whose processes may pass on other people's requests to the core."""
    port: int = 7443
    sites_http_port: int = 80
    sites_https_port: int = 443
    further_origins: tuple[str, ...] = ()
    acme: AcmeSettings | None = None
    """The ACME authority for the certificates of sites and of the panel; without it sites have uploaded ones only."""
    certificate: tuple[Path, Path] | None = None
    """The operator's certificate for the panel, in place of one by ACME: PEM files of the certificate with its chain,
    and of its key."""
    mail: MailSettings | None = None
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    sftp: SftpSettings = field(default_factory=SftpSettings)
    dns: DnsSettings = field(default_factory=DnsSettings)
    wordpress: WordPressSource = field(default_factory=WordPressSource)
    """The source of the files of new WordPress sites."""
    license_key: Ed25519PublicKey | None = None
    """Verifies licences; without it none can be installed."""
    update_source: str | None = None
    """Where newer releases of the panel are looked for: an HTTPS address or a folder."""

    @property
    def folders(self) -> HostFolders:
        return HostFolders(self.data_dir)

    @property
    def certified_name(self) -> str | None:
        """The name that an authority may certify, if `public_host` is one."""
        try:
            return host_name(self.public_host)
        except ValueError:
            return None

    @property
    def url_host(self) -> str:
        return f"[{self.public_host}]" if ":" in self.public_host else self.public_host

    @property
    def public_url(self) -> str:
        return f"https://{self.url_host}:{self.port}"

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names at which browsers reach the panel, for its certificate."""
        return tuple(dict.fromkeys((self.public_host, "localhost", "127.0.0.1", "::1")))

    @property
    def browser_names(self) -> frozenset[str]:
        """Names at which browsers see the panel."""
        names = (self.public_host, *(urlsplit(origin).hostname or "" for origin in self.origins))
        return frozenset(name.rstrip(".").lower() for name in names) - {""}

    @property
    def reserved_names(self) -> frozenset[str]:
        """Names that no site may have, and no site below them: the names of the panel itself, since browsers send the
        cookies of a host to all of its ports; and those of the DNS name servers, on which every zone depends."""
        servers = frozenset(name.rstrip(".").lower() for name in self.dns.nameservers)
        return self.browser_names | (servers - {""})

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins at which browsers see the panel's own pages."""
        hosts = (self.url_host, "localhost", "127.0.0.1", "[::1]")
        default = [f"https://{host}" for host in hosts] if self.port == HTTPS_PORT else []
        return (*(f"https://{host}:{self.port}" for host in hosts), *default, *self.further_origins)
