"""The settings of the panel's core, as options of the commands that need them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncclick as click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from svc.cli.acme_options import FILE, acme_options, acme_settings
from svc.cli.configuration import fill_in, settings
from svc.cli.failures import Exit, Failure
from svc.cli.services import CORE_SOCKET, PANEL_CONFIGURATION, PANEL_PORT
from svc.panel.config import PanelConfig
from svc_actors.mail import mail_settings
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.webhooks.settings import webhook_settings
from svc_webhost.knot import KnotSettings
from svc_webhost.knot.names import host_name
from svc_webhost.sftp.configuration import DEFAULT_PORT, SftpSettings
from svc_webhost.wordpress import DEBIAN, WordPressSource

CONTEXT: Final = {"auto_envvar_prefix": "SVC_PANEL"}
"""The context settings of a command with these options."""

DNS_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--nameserver",
        "nameservers",
        multiple=True,
        help="Public name of a name server of the zones, this server's first; the public host's "
        "without one. May be repeated.",
    ),
    click.option(
        "--hostmaster", help="Contact mail address of the zones (SOA); hostmaster@ the public host by default."
    ),
    click.option(
        "--site-address",
        "site_addresses",
        multiple=True,
        help="Public address of the sites; detected by default. May be repeated.",
    ),
    click.option("--dns-bind", multiple=True, default=("0.0.0.0", "::"), show_default=True),  # noqa: S104
    click.option("--dns-port", default=53, show_default=True),
)


_OPTIONS: Final = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, resolve_path=True),
        default=PANEL_CONFIGURATION,
        show_default=True,
        is_eager=True,
        expose_value=False,
        callback=fill_in,
        help="The configuration file.",
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path, resolve_path=True, file_okay=False),
        default=Path("/var/lib/svc/panel"),
        show_default=True,
    ),
    click.option(
        "--public-host",
        default="127.0.0.1",
        show_default=True,
        help="Host name or address at which browsers reach the panel.",
    ),
    click.option("--socket", type=click.Path(path_type=Path), default=CORE_SOCKET, show_default=True),
    click.option("--web-user", default="svc-web", show_default=True, help="System account of `svc panel web`."),
    click.option("--port", default=PANEL_PORT, show_default=True, help="Port of `svc panel web`."),
    click.option("--sites-http-port", default=80, show_default=True),
    click.option("--sites-https-port", default=443, show_default=True),
    click.option("--sftp-port", default=DEFAULT_PORT, show_default=True, help="Port of the SFTP server."),
    click.option(
        "--origin",
        "origins",
        multiple=True,
        help="Another address of the pages in browsers: https://name. May be repeated.",
    ),
    click.option(
        "--wordpress-source",
        type=click.Path(path_type=Path),
        default=DEBIAN,
        show_default=True,
        help="WordPress for new sites: a folder, or an archive of wordpress.org.",
    ),
    click.option("--wordpress-sha256", help="SHA-256 that this archive must have."),
    *DNS_OPTIONS,
    *acme_options("Get certificates of sites and the panel by ACME: the e-mail address that the authority writes to."),
    click.option(
        "--certificate",
        type=FILE,
        help="A certificate of your own for the panel, with its chain: PEM, read again when it changes.",
    ),
    click.option("--certificate-key", type=FILE, help="Its private key."),
    click.option(
        "--update-source",
        help="Where newer releases of the panel are: an HTTPS address, or a folder of this server. None by default.",
    ),
    click.option("--license-key", type=FILE, help="Public key of the issuer of licences: Ed25519, PEM."),
)


def _config(
    environ: Mapping[str, str],
    *,
    data: Path,
    public_host: str,
    socket: Path,
    web_user: str,
    port: int,
    sites_http_port: int,
    sites_https_port: int,
    sftp_port: int,
    origins: tuple[str, ...],
    wordpress_source: Path,
    wordpress_sha256: str | None,
    nameservers: tuple[str, ...],
    hostmaster: str | None,
    site_addresses: tuple[str, ...],
    dns_bind: tuple[str, ...],
    dns_port: int,
    acme_contact: str | None,
    acme_terms_agreed: bool,
    acme_directory: str,
    acme_roots: Path | None,
    acme_eab_key_id: str | None,
    acme_eab_key_file: Path | None,
    certificate: Path | None,
    certificate_key: Path | None,
    license_key: Path | None,
    update_source: str | None,
) -> PanelConfig:
    return PanelConfig(
        data_dir=data,
        public_host=public_host,
        socket=socket,
        web_user=web_user,
        port=port,
        sites_http_port=sites_http_port,
        sites_https_port=sites_https_port,
        sftp=SftpSettings(port=sftp_port),
        further_origins=tuple(origin.rstrip("/") for origin in origins),
        acme=acme_settings(
            acme_contact,
            terms_agreed=acme_terms_agreed,
            directory=acme_directory,
            roots=acme_roots,
            eab_key_id=acme_eab_key_id,
            eab_key_file=acme_eab_key_file,
        ),
        certificate=_both(certificate, certificate_key),
        mail=mail_settings(environ),
        webhooks=webhook_settings(environ),
        wordpress=_wordpress(wordpress_source, wordpress_sha256),
        dns=dns_settings(
            nameservers=nameservers,
            hostmaster=hostmaster,
            site_addresses=site_addresses,
            dns_bind=dns_bind,
            dns_port=dns_port,
        ),
        license_key=_license_key(license_key),
        update_source=_update_source(update_source),
    )


def _both(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if (certificate is None) is not (key is None):
        raise Failure(Exit.INVALID, "A certificate and its private key belong together: give both, or neither.")
    return None if certificate is None or key is None else (certificate, key)


def _update_source(named: str | None) -> str | None:
    """Validate the address of the update source. Releases are signed, so the transport need not protect their content;
    HTTPS is required so that nobody on the way can withhold a release unnoticed."""
    if not named:
        return None
    parts = urlsplit(named)
    if "@" in parts.netloc:
        message = "--update-source: the address must not contain a user name or password, since the panel shows it."
        raise Failure(Exit.INVALID, message)
    if named.startswith("/") or (parts.scheme == "https" and parts.hostname and not parts.query and not parts.fragment):
        return named
    raise Failure(Exit.INVALID, f"--update-source: {named} is neither an HTTPS address nor the path of a folder.")


def _license_key(file: Path | None) -> Ed25519PublicKey | None:
    if file is None:
        return None
    try:
        key = load_pem_public_key(file.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise Failure(Exit.INVALID, f"--license-key: {file} is no Ed25519 public key in PEM.")
    return key


def _wordpress(source: Path, sha256: str | None) -> WordPressSource:
    if sha256 is not None and re.fullmatch(r"[0-9a-fA-F]{64}", sha256) is None:
        raise Failure(Exit.INVALID, "--wordpress-sha256 is not a SHA-256: 64 digits and letters a to f.")
    if sha256 is None and source.is_file():
        raise Failure(Exit.INVALID, f"{source} is an archive: give its SHA-256 by --wordpress-sha256.")
    return WordPressSource(source, None if sha256 is None else sha256.lower())


panel_options = settings(_OPTIONS, _config)


def dns_settings(
    *,
    nameservers: Sequence[str],
    hostmaster: str | None,
    site_addresses: Sequence[str],
    dns_bind: Sequence[str],
    dns_port: int,
) -> DnsSettings:
    """The DNS settings in the options. Raises `Failure` for an invalid name or address."""
    try:
        if hostmaster is not None:
            local, _, domain = hostmaster.rpartition("@")
            if not local:
                raise ValueError(f"{hostmaster} is no address such as hostmaster@example.com")
            hostmaster = f"{local}@{host_name(domain)}"
        return DnsSettings(
            nameservers=tuple(host_name(name) for name in nameservers),
            hostmaster=hostmaster,
            addresses=tuple(ip_address(text) for text in site_addresses),
            knot=KnotSettings(tuple(ip_address(text) for text in dns_bind), dns_port),
        )
    except ValueError as error:
        raise Failure(Exit.INVALID, f"DNS: {error}.") from None
