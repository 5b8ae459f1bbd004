"""`svc controller check`: what would keep the controller from serving here, before it is started or afterwards.

Nothing is changed. Each line says what was checked, and what to do if the check failed.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import asyncclick as click
import httpx
import trio
from cryptography import x509

from svc.cli.controller_options import CONTEXT, controller_options
from svc.cli.failures import Exit, Failure
from svc.cli.terminal import write
from svc.controller.certificate import issued_file
from svc.controller.config import ControllerConfig
from svc_actors.acme import CHALLENGE_PATH, AcmeClient, AcmeError, new_key
from svc_actors.certificates.settings import AcmeSettings
from svc_actors.disk_space import DiskLevel, Space, Thresholds
from svc_actors.mail import Relay, RelayError
from svc_actors.store import OWNER_VARIABLE, URL_VARIABLE, Database
from svc_common.errors import ServiceError
from svc_common.listening import hosts_of
from svc_http.certificates import expires_soon
from svc_http.plain import NO_CHALLENGE

_TIMEOUT: Final = 5.0

HTTP_PORT = 80
"""The port to which every authority connects for validation (RFC 8555, 8.3). It may be forwarded to another local
port."""


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What was checked, the result, and what to do about it."""

    about: str
    verdict: Verdict
    words: str


@click.command(context_settings=CONTEXT)
@controller_options
async def check(config: ControllerConfig, environ: Mapping[str, str]) -> None:
    """Say what is wrong with the controller of this machine, with the options of `svc serve controller`.

    Run it as the account that the service runs as. Exit code 7 when the controller could not serve."""
    failed = False
    async with aclosing(findings(config, environ)) as found:
        async for each in found:
            write(f"{each.verdict.value:8} {each.about}: {each.words}")
            failed = failed or each.verdict is Verdict.FAILED
    if failed:
        raise Failure(Exit.NOT_READY, "The controller cannot serve like this.")


async def findings(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncGenerator[Finding, None]:
    serving = await _health(config)
    yield serving
    yield _data_folder(config)
    yield _disk(config)
    yield _certificate(config)
    if config.acme is not None:
        async with aclosing(acme_findings(config.acme, serving=serving.verdict is Verdict.OK)) as of_acme:
            async for each in of_acme:
                yield each
    yield await _database(environ)
    yield _owner(environ)
    yield await _mail(config)
    if serving.verdict is not Verdict.OK:
        for about, host, port in (
            ("API port", config.bind_host, config.api_port),
            ("gateway port", config.bind_host, config.gateway_port),
            ("operations port", "127.0.0.1", config.operations_port),
            *((("port for ACME", config.bind_host, config.acme.port),) if config.acme and config.acme.port else ()),
        ):
            for address in hosts_of(host):
                yield _port(about, address, port)


async def _health(config: ControllerConfig) -> Finding:
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{config.operations_port}/healthz")
    except httpx.TransportError:
        return Finding("service", Verdict.WARNING, "it does not run")
    if answer.is_success:
        return Finding("service", Verdict.OK, f"it runs, at {config.public_url}")
    return Finding("service", Verdict.FAILED, f"it runs, but is not ready: {answer.text.strip()}")


def _data_folder(config: ControllerConfig) -> Finding:
    folder = config.data_dir
    if not folder.exists():
        nearest = next(parent for parent in folder.parents if parent.exists())
        if os.access(nearest, os.W_OK | os.X_OK):
            return Finding("data", Verdict.OK, f"{folder} does not exist yet; the first start creates it")
        return Finding(
            "data", Verdict.FAILED, f"{folder} does not exist, and this account cannot create it in {nearest}"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Finding("data", Verdict.FAILED, f"this account cannot write to {folder}; it must own the folder")
    key = folder / "secret.key"
    if key.exists() and key.stat().st_mode & 0o077:
        return Finding(
            "data", Verdict.WARNING, f"other users can read {key}, the key of stored secrets: chmod 600 {key}"
        )
    return Finding("data", Verdict.OK, str(folder))


def _disk(config: ControllerConfig) -> Finding:
    folder = next(each for each in (config.data_dir, *config.data_dir.parents) if each.exists())
    space = Space.of(folder)
    if Thresholds().level(space, DiskLevel.OK) is DiskLevel.OK:
        return Finding("disk", Verdict.OK, str(space))
    return Finding("disk", Verdict.WARNING, f"{space}; changes are refused when it is full (docs/full-disks.md)")


def _certificate(config: ControllerConfig) -> Finding:
    issued = issued_file(config.data_dir)
    if config.acme is not None and os.access(issued, os.R_OK):
        certificate, key = issued, issued
    elif config.certificate is not None:
        certificate, key = config.certificate
    else:
        until = "until ACME issues one, " if config.acme is not None else ""
        return Finding(
            "certificate", Verdict.OK, f"{until}browsers get a certificate of the controller's own authority"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        shown = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        return Finding("certificate", Verdict.FAILED, f"{certificate} with {key} cannot be used: {error}")
    left = shown.not_valid_after_utc - datetime.now(UTC)
    ends = f"it ends on {shown.not_valid_after_utc:%Y-%m-%d}"
    if left.total_seconds() <= 0:
        return Finding("certificate", Verdict.FAILED, f"{certificate}: {ends}; renew it")
    if not _names(shown, config.public_host):
        return Finding("certificate", Verdict.WARNING, f"{certificate} is not for {config.public_host}")
    if expires_soon(shown):
        return Finding("certificate", Verdict.WARNING, f"{certificate}: {ends} and was not renewed")
    return Finding("certificate", Verdict.OK, f"{certificate}: {ends}")


def _names(certificate: x509.Certificate, host: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    exact = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    return host in exact or f"*.{host.partition('.')[2]}" in exact


async def _database(environ: Mapping[str, str]) -> Finding:
    for variable in (URL_VARIABLE, OWNER_VARIABLE):
        url = environ.get(variable, "")
        if not url:
            continue
        try:
            with trio.fail_after(_TIMEOUT):
                async with Database.open(url, size=1, application_name="svc check") as database:
                    await database.fetchval("SELECT 1")
        except (ServiceError, ValueError, OSError, trio.TooSlowError) as error:
            return Finding("database", Verdict.FAILED, f"{variable}: {_place(url)} does not answer: {error}")
    url = environ.get(URL_VARIABLE, "")
    return Finding("database", Verdict.OK, _place(url) if url else "one of its own, in the data folder")


def _owner(environ: Mapping[str, str]) -> Finding:
    if environ.get(URL_VARIABLE) and not environ.get(OWNER_VARIABLE):
        words = f"{OWNER_VARIABLE} is not set: the service's role can change the audit trail (docs/database.md)"
        return Finding("roles", Verdict.WARNING, words)
    return Finding("roles", Verdict.OK, "the service's role owns no table")


async def _mail(config: ControllerConfig) -> Finding:
    if config.mail is None:
        return Finding("mail", Verdict.OK, "none is sent: there is no [mail] in the settings")
    try:
        async with Relay.open(config.mail, trio.CapacityLimiter(1)):
            return Finding("mail", Verdict.OK, str(config.mail))
    except RelayError as error:
        return Finding("mail", Verdict.WARNING, str(error))


def _place(url: str) -> str:
    """The database's location, without credentials."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'this machine'}{parts.path}"


def _port(about: str, host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = f"[{host}]:{port}" if family is socket.AF_INET6 else f"{host}:{port}"
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(about, Verdict.FAILED, f"{where} cannot be listened on: {error.strerror}")
    return Finding(about, Verdict.OK, f"{where} is free")


# Check whether an authority could issue the controller a certificate by ACME, as far as this machine can tell. No
# certificate is ordered. An authority connects to port 80 of the names from the Internet; the check connects to the
# same port from here.
async def acme_findings(acme: AcmeSettings, *, serving: bool) -> AsyncGenerator[Finding, None]:
    """`serving`: the controller is running, so port 80 of the names should be answered by it."""
    yield await _authority(acme)
    for name in acme.names:
        resolved = await _resolved(name)
        yield resolved
        if serving and acme.terms_agreed and resolved.verdict is Verdict.OK:
            yield await _answered(name)


def open_http(acme: AcmeSettings) -> httpx.AsyncClient:
    """A client for the authority's server. Raises `AcmeError` if the roots cannot be read."""
    return httpx.AsyncClient(verify=acme.trust(), timeout=_TIMEOUT)


async def _authority(acme: AcmeSettings) -> Finding:
    try:
        acme.external_account()
        async with open_http(acme) as http:
            meta = (await AcmeClient(http, acme.directory, new_key()).directory()).meta
    except AcmeError as error:
        return Finding("ACME", Verdict.WARNING, str(error))
    if not acme.terms_agreed:
        terms = f"read {meta.terms}, then " if meta.terms else ""
        words = f"the terms of {acme.directory} are not accepted: {terms}set terms-agreed = true in the table [acme]"
        return Finding("ACME", Verdict.WARNING, words)
    if meta.external_account_required and acme.external_key_id is None:
        words = f"{acme.directory} requires an external account: set eab-key-id and eab-key-file to what it gave you"
        return Finding("ACME", Verdict.WARNING, words)
    return Finding("ACME", Verdict.OK, f"{acme.directory} answers")


async def _resolved(name: str) -> Finding:
    try:
        with trio.fail_after(_TIMEOUT):
            found = await trio.socket.getaddrinfo(name, HTTP_PORT, type=trio.socket.SOCK_STREAM)
    except (OSError, trio.TooSlowError) as error:
        return Finding(
            "name", Verdict.WARNING, f"{name} has no address in the DNS: {error or 'no answer'}; fix its DNS records"
        )
    addresses = ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Finding("name", Verdict.OK, f"{name} resolves to {addresses}")


async def _answered(name: str) -> Finding:
    host = f"[{name}]" if ":" in name else name
    url = f"http://{host}:{HTTP_PORT}{CHALLENGE_PATH}check"
    try:
        # As authorities do: follow redirects, and do not verify certificates.
        async with httpx.AsyncClient(
            timeout=_TIMEOUT,
            trust_env=False,
            follow_redirects=True,
            verify=False,  # noqa: S501
        ) as http:
            said = (await http.get(url)).text
    except httpx.HTTPError as error:
        words = f"port {HTTP_PORT} of {name} cannot be reached from here: {error or type(error).__name__}"
        return Finding("port 80", Verdict.WARNING, words)
    if said != NO_CHALLENGE:
        words = f"another server answers at {url}; configure it to pass {CHALLENGE_PATH} on to the controller"
        return Finding("port 80", Verdict.WARNING, words)
    return Finding("port 80", Verdict.OK, f"the controller answers at {name}")
