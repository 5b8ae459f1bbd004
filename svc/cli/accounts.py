"""Signing in from a terminal, and the profiles that remember it.

`svc login` trades a password for an API token of the user's own; the password is not stored. If no system authority
signed the server's certificate, its fingerprint is shown; the certificate is trusted only if the user confirms it or
gave the fingerprint.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import asyncclick as click
import httpx
import trio

from svc.cli import profiles
from svc.cli.client import API_PREFIX, Client, certificate_refused
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Profile, ProfileFile
from svc.cli.services import ServiceKind
from svc.cli.terminal import say

_CONNECT_SECONDS = 10.0
_BROWSER = "_browser"
"""The suffix of the cookie with which a service recognises a client that has signed in before."""
_SESSION = "_session"
_PANELS_SESSION = "svc_session"
"""The panel's session cookie. The controller's has another name, so the name shows which service answers."""


@dataclass(frozen=True)
class SignIn:
    """The options of `svc login`. `trusted` is the service's certificate authority, if the system does not trust its
    certificate. `code` is the second factor; None asks for one if the account needs it."""

    url: str
    email: str
    password: str = field(repr=False)
    name: str
    days: int
    trusted: str | None
    code: str | None = field(default=None, repr=False)


async def login(environment: Mapping[str, str], given: SignIn) -> None:
    stored = profiles.load(environment)
    before = stored.profiles.get(given.name)
    known_by = before.known_by if before is not None and before.url == given.url else None
    profile = Profile(url=given.url, trusted=given.trusted, known_by=known_by)
    signed_in = await trade_password(profile, given.email, given.password, given.days, given.code)
    profiles.save(environment, ProfileFile(given.name, {**stored.profiles, given.name: signed_in}))
    say(f"signed in to {given.url} as {given.email}; profile {given.name}", style="green")


async def trade_password(profile: Profile, email: str, password: str, days: int, code: str | None = None) -> Profile:
    """Sign in with the password, and a code if needed, create an API token, and sign out. Returns the profile with the
    token. The token has its owner's full authority; `days` 0 never expires."""
    async with Client.open(profile) as client:
        guard = {"X-Service-Request": "1", "Origin": profile.url}
        known = {"Cookie": profile.known_by} if profile.known_by else {}
        headers = guard | known
        answer = await client.call("POST", "/auth/login", body={"email": email, "password": password}, headers=headers)
        if "pending" in answer:
            await _give_code(client, answer, code, headers)
        known_by = client.cookie(_BROWSER) or profile.known_by
        session = (client.cookie(_SESSION) or "").partition("=")[0]
        service = ServiceKind.PANEL.value if session == _PANELS_SESSION else None
        wanted = {"name": f"svc on {socket.gethostname()}", "days": days}
        created = await client.call("POST", "/tokens", body=wanted, headers=guard)
        await client.call("POST", "/auth/logout", body={}, headers=guard)
        return replace(profile, token=str(created["token"]), known_by=known_by, service=service)


async def _give_code(client: Client, needed: Mapping[str, Any], code: str | None, headers: Mapping[str, str]) -> None:
    """Complete a sign-in by a code. If the account has to set up a second factor first, set it up."""
    enrolment = needed["enrolment"]
    if enrolment is not None:
        say(
            "Administrators of this service sign in with a second factor. Scan this with an authenticator app, "
            "or type the secret:"
        )
        say(f"{enrolment['url']}\nsecret: {enrolment['secret']}\n")
    if code is None:
        code = await _typed_code()
    body = {"pending": needed["pending"], "code": code}
    signed_in = await client.call("POST", "/auth/code", body=body, headers=headers)
    if signed_in["recovery_codes"]:
        say(
            "Recovery codes: each signs in once without the authenticator. They are shown only now, so store "
            "them safely:"
        )
        say("\n".join(signed_in["recovery_codes"]) + "\n")


async def _typed_code() -> str:
    if sys.stdin.isatty():
        typed: str = await click.prompt("Code of your authenticator, or a recovery code", err=True)
        return typed
    line = click.get_text_stream("stdin").readline()
    if not line:
        raise Failure(Exit.INVALID, "this account signs in with a second factor: a code is required", "give --code")
    return line.strip()


async def trust(url: str, fingerprint: str | None) -> str | None:
    """The authority to trust for a service, or None if the system's authorities signed its certificate.

    The controller's authority, or the panel's own certificate, is fetched without verification and compared with the
    fingerprint that the service printed. If the server's certificate was not signed by what was fetched, the first
    request that carries a secret fails."""
    if fingerprint is None and await _vouched_for(url):
        return None
    authority = await _authority(url)
    seen = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).hexdigest()
    if fingerprint is not None:
        if not hmac.compare_digest(fingerprint.replace(":", "").strip().lower().encode(), seen.encode()):
            what = f"the certificate authority of {url} has the fingerprint {seen}, not the one given"
            raise Failure(Exit.FORBIDDEN, what, "nothing was sent")
        return authority
    if not sys.stdin.isatty():
        hint = f"give --fingerprint {seen} if it is what the service printed"
        raise Failure(
            Exit.FORBIDDEN, f"the certificate of {url} is not trusted on this computer; nothing was sent", hint
        )
    say(f"The certificate of {url} is not trusted on this computer. SHA-256 of its authority: {seen}")
    if not click.confirm("Is that the fingerprint that the service printed?", err=True):
        raise Failure(Exit.FORBIDDEN, "the certificate was not trusted; nothing was sent")
    return authority


async def _vouched_for(url: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=_CONNECT_SECONDS) as http:
            await http.head(url)
    except httpx.TransportError as error:
        if certificate_refused(error):
            return False
        raise Failure(Exit.UNAVAILABLE, f"cannot reach {url}: {error}", "is the service running there?") from error
    return True


async def _authority(url: str) -> str:
    """The certificate of the controller's own authority, in PEM; for a panel, which has no authority, its own
    certificate."""
    try:
        # The certificate is not verified on purpose: the answer is public, and its fingerprint is compared before it is
        # used.
        async with httpx.AsyncClient(timeout=_CONNECT_SECONDS, verify=False) as http:  # noqa: S501
            answer = await http.get(f"{url}{API_PREFIX}/nodes/authority")
    except httpx.TransportError as error:
        raise Failure(Exit.UNAVAILABLE, f"cannot reach {url}: {error}", "is the service running there?") from error
    if answer.status_code == httpx.codes.NOT_FOUND and b'"not_found"' in answer.content:
        return await _own_certificate(url)
    if not answer.is_success or "BEGIN CERTIFICATE" not in answer.text:
        raise Failure(Exit.INVALID, f"{url} does not answer as a controller or a panel does", "is that its address?")
    return answer.text


async def _own_certificate(url: str) -> str:
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with trio.fail_after(_CONNECT_SECONDS):
        async with await trio.open_ssl_over_tcp_stream(
            parts.hostname or "", parts.port or 443, ssl_context=context, https_compatible=True
        ) as stream:
            await stream.do_handshake()
            shown: bytes = stream.getpeercert(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(shown)
