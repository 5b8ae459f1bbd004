"""DNS of the panel, as options of its commands (docs/dns.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, Final

import asyncclick as click

from svc.cli.failures import Exit, Failure
from svc_actors.panel.dns.settings import DnsSettings
from svc_webhost.knot import KnotSettings
from svc_webhost.knot.names import host_name

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


def dns_settings(
    *,
    nameservers: Sequence[str],
    hostmaster: str | None,
    site_addresses: Sequence[str],
    dns_bind: Sequence[str],
    dns_port: int,
) -> DnsSettings:
    """Raises `Failure` for an invalid name or address."""
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
