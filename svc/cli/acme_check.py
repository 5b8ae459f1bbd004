"""What would keep an authority from issuing the controller a certificate by ACME, as far as this machine can tell.

Nothing is ordered. An authority connects to port 80 of the names from the internet; the check does the same from here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import httpx
import trio

from svc.cli.finding import Finding, Verdict
from svc_actors.acme import CHALLENGE_PATH, AcmeClient, AcmeError, new_key
from svc_actors.certificates.settings import AcmeSettings
from svc_http.plain import NO_CHALLENGE

HTTP_PORT = 80
"""The port that every authority validates at (RFC 8555, 8.3), whichever local port it is forwarded to."""
_TIMEOUT: Final = 5.0


async def acme_findings(acme: AcmeSettings, *, serving: bool) -> AsyncGenerator[Finding, None]:
    """`serving`: the controller runs, so it should answer port 80 of the names."""
    yield await _authority(acme)
    for name in acme.names:
        resolved = await _resolved(name)
        yield resolved
        if serving and acme.terms_agreed and resolved.verdict is Verdict.OK:
            yield await _answered(name)


def open_http(acme: AcmeSettings) -> httpx.AsyncClient:
    """Raises `AcmeError` when the roots cannot be read."""
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
