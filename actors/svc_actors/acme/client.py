"""The requests of ACME, each signed with the account's key and a fresh nonce.

Invariants: a nonce that the authority refuses (`badNonce`) is replaced and the request repeated, which is allowed for
any request (RFC 8555, 6.5). Nothing else is repeated here: the caller knows when that makes sense. Every failure of the
network or the authority is raised as an `AcmeError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from svc_actors.acme.errors import AcmeError, AuthorityAway, NamesRefused, RateLimited, Refused, kind_of, refused
from svc_actors.acme.keys import Key, base64url, bound, jwk, signed, thumbprint
from svc_actors.acme.messages import Authorization, Challenge, Directory, Order, RenewalInfo
from svc_actors.retry_after import retry_after_seconds

_ATTEMPTS: Final = 12
"""Attempts per request. Test authorities refuse one nonce in ten at random; with this many attempts, one request in
10^12 fails."""

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class ExternalAccount:
    """A customer's account with the authority, to which the ACME account is bound. Commercial authorities issue a key
    id and a key (HMAC, in base64url) for it."""

    key_id: str
    mac_key: bytes = field(repr=False)


class AcmeClient:
    """One account with one authority. The caller's `http` determines time-outs and trusted roots.

    `account_url` is the result of an earlier `register`."""

    def __init__(self, http: httpx.AsyncClient, directory_url: str, key: Key, account_url: str | None = None) -> None:
        self._http = http
        self._directory_url = directory_url
        self._key = key
        self._account_url = account_url
        self._directory: Directory | None = None
        self._nonce: str | None = None

    async def directory(self) -> Directory:
        if self._directory is None:
            response = await self._send("GET", self._directory_url)
            if not response.is_success:
                raise _failure(response)
            self._directory = self._read(Directory, response)
        return self._directory

    async def register(self, contact: str, *, terms_agreed: bool, external: ExternalAccount | None = None) -> str:
        """Create the account of this key if there is none, and set its e-mail address; returns its URL."""
        url = (await self.directory()).new_account
        wanted: dict[str, Any] = {"contact": [f"mailto:{contact}"], "termsOfServiceAgreed": terms_agreed}
        if external is not None:
            wanted["externalAccountBinding"] = bound(self._key, url, external.key_id, external.mac_key)
        response = await self._post(url, wanted, by_key=True)
        self._account_url = self._location(response)
        if response.status_code == httpx.codes.OK:  # The account exists already, perhaps with another address.
            await self._post(self._account_url, {"contact": wanted["contact"]})
        return self._account_url

    async def new_order(self, names: Sequence[str], replaces: str | None = None) -> Order:
        """Order a certificate for these names or addresses. The authority may answer with an existing open order.
        `replaces`: the certificate that the new one follows, as the authority names it; renewals that it has suggested
        may be free of its limits (RFC 9773, section 5)."""
        directory = await self.directory()
        wanted: dict[str, Any] = {"identifiers": [{"type": _kind(name), "value": name} for name in names]}
        if replaces is not None and directory.renewal_info is not None:
            try:
                response = await self._post(directory.new_order, wanted | {"replaces": replaces})
                return self._order(response, self._location(response))
            except NamesRefused:
                raise
            except Refused:
                # The authority does not know the certificate, or has recorded a replacement already. Order without
                # `replaces`.
                pass
        response = await self._post(directory.new_order, wanted)
        return self._order(response, self._location(response))

    async def renewal_info(self, certificate: str) -> RenewalInfo | None:
        """What the authority suggests for a certificate that it has issued; None if it suggests nothing."""
        url = (await self.directory()).renewal_info
        if url is None:
            return None
        response = await self._send("GET", f"{url.rstrip('/')}/{certificate}")
        if not response.is_success:
            raise _failure(response)
        found = self._read(RenewalInfo, response)
        return found.model_copy(update={"retry_after": retry_after_seconds(response.headers)})

    async def order(self, url: str) -> Order:
        return self._order(await self._post(url, None), url)

    async def authorization(self, url: str) -> Authorization:
        return self._read(Authorization, await self._post(url, None))

    async def respond(self, challenge: Challenge) -> None:
        """Ask the authority to check the proof, which must be in place."""
        await self._post(challenge.url, {})

    async def finalise(self, order: Order, request: bytes) -> Order:
        """Request the certificate with a CSR in DER; the order must be ready."""
        return self._order(await self._post(order.finalize, {"csr": base64url(request)}), order.url)

    async def certificate(self, order: Order) -> str:
        """The certificate of a valid order with its chain, in PEM."""
        if order.certificate is None:
            raise AuthorityAway(f"{self._host} reports the order as done, but gives no URL of the certificate.")
        return (await self._post(order.certificate, None)).text

    def proof(self, token: str) -> str:
        """The key authorization of a challenge's token (RFC 8555, 8.1); dns-01 shows its SHA-256."""
        return f"{token}.{thumbprint(self._key)}"

    async def _post(self, url: str, payload: Mapping[str, Any] | None, *, by_key: bool = False) -> httpx.Response:
        who: dict[str, Any] = {"jwk": jwk(self._key)} if by_key else {"kid": self._account_url}
        for _ in range(_ATTEMPTS):
            nonce, self._nonce = self._nonce or await self._fresh_nonce(), None
            response = await self._send(
                "POST", url, json=signed(self._key, who | {"nonce": nonce, "url": url}, payload)
            )
            self._nonce = response.headers.get("replay-nonce")
            if response.is_success:
                return response
            if kind_of(_problem(response)) != "badNonce":
                raise _failure(response)
        raise AuthorityAway(f"{self._host} rejected {_ATTEMPTS} nonces in a row that it had issued itself.")

    async def _fresh_nonce(self) -> str:
        response = await self._send("HEAD", (await self.directory()).new_nonce)
        nonce: str | None = response.headers.get("replay-nonce")
        if nonce is None:
            raise AuthorityAway(f"{self._host} sent no nonce.", retry_after=retry_after_seconds(response.headers))
        return nonce

    async def _send(self, method: str, url: str, *, json: Mapping[str, str] | None = None) -> httpx.Response:
        try:
            headers = {"Content-Type": "application/jose+json"} if json is not None else {}
            return await self._http.request(method, url, json=json, headers=headers)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise AuthorityAway(f"{self._host} cannot be reached: {error or type(error).__name__}") from error

    def _order(self, response: httpx.Response, url: str) -> Order:
        order = self._read(Order, response, url=url)
        return order.model_copy(update={"retry_after": retry_after_seconds(response.headers)})

    def _location(self, response: httpx.Response) -> str:
        location: str | None = response.headers.get("location")
        if location is None:
            raise AuthorityAway(f"{self._host} did not send the URL of what it created.")
        return location

    def _read(self, model: type[ModelT], response: httpx.Response, **known: str) -> ModelT:
        try:
            return model.model_validate({**response.json(), **known})
        except (ValueError, TypeError, ValidationError) as error:
            raise AuthorityAway(f"{response.url} did not answer as an ACME authority does.") from error

    @property
    def _host(self) -> str:
        return httpx.URL(self._directory_url).host


def _kind(name: str) -> str:
    """The type of an identifier: RFC 8555 has names, RFC 8738 addresses."""
    try:
        ip_address(name)
    except ValueError:
        return "dns"
    return "ip"


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    """The problem document in an error's body, or an empty one."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _failure(response: httpx.Response) -> AcmeError:
    problem, retry_after = _problem(response), retry_after_seconds(response.headers)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS and not kind_of(problem):
        return RateLimited(f"{response.url.host} received too many requests.", retry_after=retry_after)
    if kind_of(problem) in ("", "serverInternal") and response.is_server_error:
        said = problem.get("detail") or f"HTTP status {response.status_code}"
        return AuthorityAway(f"{response.url.host} is temporarily unavailable: {said}", retry_after=retry_after)
    if not problem:
        return Refused(f"{response.url} answered with HTTP status {response.status_code}.", retry_after=retry_after)
    return refused(problem, retry_after=retry_after)
