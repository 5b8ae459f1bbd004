"""Signing in from a terminal, and the profiles that remember it.

`svc login` trades a password for an API token of one's own; the password is not kept. A certificate that no authority
of this system vouches for is shown by its fingerprint, and trusted only when the person says so or gave it.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import sys
from typing import Any
from urllib.parse import urlsplit

import asyncclick as click
import httpx
import trio

from svc.cli import profiles
from svc.cli.client import API_PREFIX, Client
from svc.cli.failures import Exit, Failure
from svc.cli.output import MESSAGES, show
from svc.cli.profiles import Profile, ProfileFile
from svc.cli.session import Session, narrow, session_options


@click.command()
@click.argument("url")
@click.option("--email", prompt="E-mail", help="Who you are.")
@click.option("--password", help="Asked for when left out.")
@click.option("--name", default="default", show_default=True, help="The profile to write.")
@click.option("--fingerprint", help="SHA-256 of the server's certificate, as the installer printed it.")
@click.option("--days", default=90, show_default=True, help="How long the token lasts; 0: for ever.")
@session_options
@click.pass_obj
async def login(
    session: Session,
    /,
    url: str,
    email: str,
    password: str | None,
    name: str,
    fingerprint: str | None,
    days: int,
    **given: Any,
) -> None:
    """Sign in to a service and remember it as a profile."""
    session = narrow(session, given)
    url = url.rstrip("/")
    if session.choice.trusted_file is not None:
        trusted: str | None = session.choice.trusted_file.read_text()
    else:
        trusted = await _trust(url, fingerprint)
    if password is None:
        password = await click.prompt("Password", hide_input=True, err=True)
    profile = Profile(url=url, trusted=trusted)
    token = await trade_password(profile, email, password, days)
    environment = session.choice.environment
    stored = profiles.load(environment)
    known = stored.profiles | {name: profile.model_copy(update={"token": token})}
    profiles.save(environment, ProfileFile(current=name, profiles=known))
    MESSAGES.print(f"signed in to {url} as {email}; profile {name}", style="green")


async def trade_password(profile: Profile, email: str, password: str, days: int) -> str:
    """An API token for a password: sign in, make the token, sign out."""
    async with Client.open(profile) as client:
        guard = {"X-Service-Request": "1", "Origin": profile.url}
        await client.call("POST", "/auth/login", body={"email": email, "password": password}, headers=guard)
        wanted = {"name": f"svc on {socket.gethostname()}", "scopes": ["admin", "write", "read"], "days": days}
        created = await client.call("POST", "/tokens", body=wanted, headers=guard)
        await client.call("POST", "/auth/logout", body={}, headers=guard)
        return str(created["token"])


async def _trust(url: str, fingerprint: str | None) -> str | None:
    """The server's certificate to pin, or None where the system's authorities vouch for it."""
    address = urlsplit(url)
    if address.scheme != "https" or address.hostname is None:
        raise Failure(Exit.INVALID, f"{url!r} is not an https:// address")
    try:
        async with httpx.AsyncClient(timeout=10.0) as http:
            await http.get(url + API_PREFIX + "/setup/status")
            return None
    except httpx.ConnectError as error:
        if "certificate" not in str(error).lower():
            raise Failure(Exit.UNAVAILABLE, f"cannot reach {url}: {error}") from error
    pem = await trio.to_thread.run_sync(ssl.get_server_certificate, (address.hostname, address.port or 443))
    seen = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    if fingerprint is not None:
        if not hmac.compare_digest(fingerprint.replace(":", "").lower(), seen):
            raise Failure(Exit.FORBIDDEN, f"the server's certificate has the fingerprint {seen}, not the one given")
        return pem
    if not sys.stdin.isatty():
        raise Failure(
            Exit.FORBIDDEN, "the server's certificate is not known here", f"give --fingerprint {seen} if it is right"
        )
    MESSAGES.print(f"The certificate of {url} is not vouched for by this system.\nSHA-256: {seen}")
    if not click.confirm("Is that the fingerprint your installer printed?", err=True):
        raise Failure(Exit.FORBIDDEN, "not trusted; nothing was sent")
    return pem


@click.group("profile")
def profile_group() -> None:
    """The services this account knows."""


@profile_group.command("list")
@session_options
@click.pass_obj
async def list_profiles(session: Session, /, **given: Any) -> None:
    """Show the profiles; the current one is marked."""
    session = narrow(session, given)
    stored = profiles.load(session.choice.environment)
    rows = [{"name": n, "url": p.url, "current": n == stored.current} for n, p in stored.profiles.items()]
    show(rows, session.style, columns=("name", "url", "current"))


@profile_group.command("use")
@click.argument("name")
@click.pass_obj
async def use_profile(session: Session, /, name: str) -> None:
    """Make a profile the current one."""
    stored = profiles.load(session.choice.environment)
    if name not in stored.profiles:
        raise Failure(Exit.NOT_FOUND, f"there is no profile {name!r}")
    profiles.save(session.choice.environment, stored.model_copy(update={"current": name}))


@profile_group.command("remove")
@click.argument("name")
@click.pass_obj
async def remove_profile(session: Session, /, name: str) -> None:
    """Forget a profile. The token itself lives on until it is deleted at the service."""
    stored = profiles.load(session.choice.environment)
    if name not in stored.profiles:
        raise Failure(Exit.NOT_FOUND, f"there is no profile {name!r}")
    left = {known: profile for known, profile in stored.profiles.items() if known != name}
    current = None if stored.current == name else stored.current
    profiles.save(session.choice.environment, ProfileFile(current=current, profiles=left))
