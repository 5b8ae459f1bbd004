"""The relay and the sender of mail: the settings `[mail]` of docs/configuration.md.

Invariant: a password and the links in mail never travel in cleartext. `none` is for a relay on this machine only; with
`starttls` a relay that does not offer it is not used, and certificates are always verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.utils import parseaddr
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit


class Security(StrEnum):
    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


_PORTS: Final = {Security.STARTTLS: 587, Security.TLS: 465, Security.NONE: 25}
"""Submission, submissions (RFC 8314) and smtp."""

MAIL_VARIABLES: Final = {
    name: f"SVC_MAIL_{name.upper().replace('-', '_')}"
    for name in ("host", "port", "security", "sender", "username", "password-file", "ca-file", "base-url")
}
"""The keys of the table `[mail]`, and the names of their environment variables."""


@dataclass(frozen=True, kw_only=True)
class MailSettings:
    """`password_file` is read at each connection, so a new password needs no restart. `ca_file` replaces the system's
    authorities. `base_url` is the start of links in mail, if it is not the service's own address."""

    host: str
    port: int
    security: Security
    sender: Address
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    base_url: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}, {self.security}, as {self.sender.addr_spec}"


def mail_settings(environ: Mapping[str, str]) -> MailSettings | None:
    """The settings of an environment; None if no host is named. Raises ValueError, which says what to set."""
    given = {name: environ.get(variable, "").strip() for name, variable in MAIL_VARIABLES.items()}
    if not given["host"]:
        if any(given.values()):
            raise ValueError("mail has settings but no host: set host of [mail], or remove the others")
        return None
    try:
        security = Security(given["security"] or Security.STARTTLS)
    except ValueError:
        raise ValueError(f"security of mail is starttls, tls or none, not {given['security']!r}") from None
    if security is Security.NONE and not _on_this_machine(given["host"]):
        raise ValueError(f"mail to {given['host']} would travel in the clear: security none is for localhost alone")
    if bool(given["username"]) is not bool(given["password-file"]):
        raise ValueError("a user name for mail needs a password-file, and a password-file a username")
    return MailSettings(
        host=given["host"],
        port=_port(given["port"], security),
        security=security,
        sender=_sender(given["sender"]),
        username=given["username"] or None,
        password_file=Path(given["password-file"]) if given["password-file"] else None,
        ca_file=Path(given["ca-file"]) if given["ca-file"] else None,
        base_url=_base_url(given["base-url"]),
    )


def _on_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port(text: str, security: Security) -> int:
    if not text:
        return _PORTS[security]
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError(f"port of mail is a number from 1 to 65535, not {text!r}")
    return int(text)


def _sender(text: str) -> Address:
    """`svc@example.org` or `Example Hosting <svc@example.org>`."""
    name, address = parseaddr(text)
    try:
        sender = Address(display_name=name, addr_spec=address)
    except (MessageError, ValueError, IndexError):
        sender = Address()
    if not sender.username or not sender.domain or not sender.addr_spec.isascii():
        raise ValueError(f"sender of mail is an address such as svc@example.org, not {text!r}")
    return sender


def _base_url(text: str) -> str | None:
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"base-url of mail is https://name or https://name:port, not {text!r}")
    return f"https://{parts.netloc}"
