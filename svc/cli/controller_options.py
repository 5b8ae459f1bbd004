"""The settings of the controller, as options of the commands that need them (docs/configuration.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import asyncclick as click

from svc.cli.acme_options import acme_options, acme_settings
from svc.cli.configuration import fill_in, settings
from svc.cli.failures import Exit, Failure
from svc.controller.config import ControllerConfig
from svc_actors.mail import mail_settings
from svc_actors.webhooks.settings import webhook_settings

_FOLDER = click.Path(path_type=Path, resolve_path=True, file_okay=False)
# Symbolic links are not resolved: a program that renews certificates may replace the link.
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)
_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, resolve_path=True),
        default=Path("/etc/svc/controller.toml"),
        show_default=True,
        is_eager=True,
        expose_value=False,
        callback=fill_in,
        help="The configuration file (docs/configuration.md).",
    ),
    click.option("--data", type=_FOLDER, default=Path("/var/lib/svc/controller"), show_default=True),
    click.option(
        "--public-host",
        default="127.0.0.1",
        show_default=True,
        help="Host name or address at which browsers and nodes reach the controller.",
    ),
    click.option(
        "--bind",
        default="0.0.0.0",  # noqa: S104
        show_default=True,
        help="The address to listen on; * and :: are all addresses of IPv4 and IPv6.",
    ),
    click.option(
        "--origin",
        "origins",
        multiple=True,
        help="Another address of the pages in browsers: https://name. May be repeated.",
    ),
    click.option(
        "--certificate",
        type=_FILE,
        help="A certificate of your own for browsers, with its chain: PEM, read again when it changes.",
    ),
    click.option("--certificate-key", type=_FILE, help="Its private key."),
    *acme_options("Get the certificate by ACME instead: the e-mail address that the authority writes to."),
    click.option(
        "--acme-name",
        "acme_names",
        multiple=True,
        help="Name to get the certificate for; --public-host by default. May be repeated.",
    ),
    click.option(
        "--acme-port",
        default=80,
        show_default=True,
        help="Port that the authority checks by HTTP; 0: the API's port only.",
    ),
    click.option("--api-port", default=8443, show_default=True),
    click.option("--gateway-port", default=8444, show_default=True),
    click.option(
        "--operations-port", default=8445, show_default=True, help="Port on loopback for /metrics and /healthz."
    ),
    click.option("--heartbeat", default=5.0, show_default=True, help="Seconds between the heartbeats of nodes."),
    click.option(
        "--rescue-system",
        type=click.Path(path_type=Path, resolve_path=True),
        default=Path("/usr/share/svc-controller/rescue.tar"),
        show_default=True,
        help="The rescue system, as tools/images/build-rescue makes it (docs/rescue.md).",
    ),
    click.option(
        "--otlp-endpoint",
        envvar=["SVC_CONTROLLER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        help="Trace collector, by OTLP over HTTP: http://127.0.0.1:4318 (docs/monitoring.md).",
    ),
    click.option(
        "--trace-ratio",
        envvar=["SVC_CONTROLLER_TRACE_RATIO", "OTEL_TRACES_SAMPLER_ARG"],
        type=click.FloatRange(0.0, 1.0),
        default=1.0,
        show_default=True,
        help="Share of traces to keep, from 0 to 1.",
    ),
)
CONTEXT = {"auto_envvar_prefix": "SVC_CONTROLLER"}
"""The context settings of a command with these options."""


def _config(
    environ: Mapping[str, str],
    *,
    data: Path,
    public_host: str,
    bind: str,
    origins: tuple[str, ...],
    certificate: Path | None,
    certificate_key: Path | None,
    acme_contact: str | None,
    acme_terms_agreed: bool,
    acme_names: tuple[str, ...],
    acme_directory: str,
    acme_roots: Path | None,
    acme_port: int,
    acme_eab_key_id: str | None,
    acme_eab_key_file: Path | None,
    api_port: int,
    gateway_port: int,
    operations_port: int,
    heartbeat: float,
    rescue_system: Path,
    otlp_endpoint: str | None,
    trace_ratio: float,
) -> ControllerConfig:
    if otlp_endpoint and not _is_collector(otlp_endpoint):
        raise Failure(
            Exit.INVALID,
            "otlp-endpoint is the address of a collector, such as http://127.0.0.1:4318, without a user or a password.",
            "The collector's credentials go into OTEL_EXPORTER_OTLP_HEADERS.",
        )
    if (certificate is None) is not (certificate_key is None):
        raise Failure(Exit.INVALID, "A certificate and its private key belong together: give both, or neither.")
    if acme_contact is None and (acme_terms_agreed or acme_names or acme_eab_key_id):
        raise Failure(Exit.INVALID, "A certificate by ACME needs a contact: an e-mail address for the authority.")
    if acme_contact is not None and certificate is not None:
        raise Failure(Exit.INVALID, "Give either certificate files or ACME for the certificate, not both.")
    acme = acme_settings(
        acme_contact,
        terms_agreed=acme_terms_agreed,
        names=acme_names or (public_host,),
        directory=acme_directory,
        roots=acme_roots,
        eab_key_id=acme_eab_key_id,
        eab_key_file=acme_eab_key_file,
        port=acme_port,
    )
    return ControllerConfig(
        data_dir=data,
        public_host=public_host,
        bind_host=bind,
        api_port=api_port,
        gateway_port=gateway_port,
        operations_port=operations_port,
        heartbeat_seconds=heartbeat,
        rescue_system=rescue_system,
        otlp_endpoint=otlp_endpoint or None,
        trace_ratio=trace_ratio,
        certificate=(certificate, certificate_key) if certificate and certificate_key else None,
        acme=acme,
        further_origins=tuple(origin.rstrip("/") for origin in origins),
        mail=mail_settings(environ),
        webhooks=webhook_settings(environ),
    )


def _is_collector(endpoint: str) -> bool:
    """Whether this is the URL of a collector. URLs with credentials are refused: options are visible in process lists
    and support bundles."""
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


controller_options = settings(_OPTIONS, _config)
