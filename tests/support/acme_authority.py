"""An ACME authority in memory, as a transport for httpx: it checks what a client signs, and errs where a test wants it.

Nobody looks for a challenge's proof: a test says what became of it (`verdict`), or looks itself.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.x509.oid import NameOID

BASE = "https://authority.test"
DIRECTORY = f"{BASE}/directory"
_PREFIX = "urn:ietf:params:acme:error:"

Verdict = Callable[[str, str], dict[str, Any] | None]
"""Of a token and a name: the problem with its challenge, or None when it is fine."""


@dataclass
class Answer:
    """Given instead of the authority's own to the next request for a resource."""

    status: int
    problem: dict[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raises: type[httpx.TransportError] | None = None
    text: str = ""


def problem(kind: str, detail: str, status: int = 400, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"type": _PREFIX + kind, "detail": detail}, named)


@dataclass
class _Order:
    names: list[str]
    status: str = "pending"
    error: dict[str, Any] | None = None
    chain: str = ""


class FakeAuthority:
    """`lifetime`: of the certificates it makes. `asked`: every resource that was asked for, in order."""

    def __init__(self, *, lifetime: datetime.timedelta = datetime.timedelta(days=90)) -> None:
        self.lifetime = lifetime
        self.verdict: Verdict = lambda token, name: None
        self.external: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.accounts: dict[str, dict[str, Any]] = {}
        self.orders: dict[str, _Order] = {}
        self.refused_nonces = 0
        """Of so many good nonces one is refused, where it is not 0."""
        self.identities = ["authority.test"]
        """Its names in CAA records."""
        self.processing = 0
        """How often an order is asked for before its certificate is there."""
        self.window: tuple[datetime.datetime, datetime.datetime] | None = None
        """When it would have certificates renewed (RFC 9773); None: it suggests nothing."""
        self.replaced: list[str | None] = []
        """The certificate that each order says it replaces."""
        self._faults: dict[str, list[Answer]] = {}
        self._nonces: set[str] = set()
        self._numbers = itertools.count(1)
        self._signed_requests = 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._root = _certificate("Test Authority", self._key.public_key(), "Test Authority", self._key, self.lifetime)

    def fail(self, resource: str, *answers: Answer) -> None:
        """Give these answers to the next requests for a resource: directory, nonce, account, order ..."""
        self._faults.setdefault(resource, []).extend(answers)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def count(self, resource: str) -> int:
        return self.asked.count(resource)

    @property
    def root_pem(self) -> str:
        return self._root.public_bytes(serialization.Encoding.PEM).decode()

    async def answer(self, request: httpx.Request) -> httpx.Response:
        resource, _, number = request.url.path.strip("/").partition("/")
        self.asked.append(resource)
        if faults := self._faults.get(resource):
            fault = faults.pop(0)
            if fault.raises is not None:
                raise fault.raises("the test says so", request=request)
            return self._respond(fault.status, fault.problem, fault.headers, fault.text)
        if resource == "directory":
            urls = {"newNonce": "nonce", "newAccount": "account", "newOrder": "neworder"}
            if self.window is not None:
                urls["renewalInfo"] = "renewal-info"
            meta = {
                "termsOfService": f"{BASE}/terms",
                "externalAccountRequired": bool(self.external),
                "caaIdentities": self.identities,
            }
            return self._respond(200, {name: f"{BASE}/{path}" for name, path in urls.items()} | {"meta": meta})
        if resource == "renewal-info" and self.window is not None:
            start, end = (each.isoformat().replace("+00:00", "Z") for each in self.window)
            return self._respond(200, {"suggestedWindow": {"start": start, "end": end}}, {"Retry-After": "21600"})
        if resource == "nonce":
            return self._respond(200, None)
        return self._signed(resource, number, request)

    def _signed(self, resource: str, number: str, request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        head = json.loads(_decode(message["protected"]))
        assert head["url"] == str(request.url)
        assert request.headers["content-type"] == "application/jose+json"
        self._signed_requests += 1
        at_random = self.refused_nonces and self._signed_requests % self.refused_nonces == 0
        if head["nonce"] not in self._nonces or at_random:
            return self._refuse("badNonce", "That nonce is not one of mine.")
        self._nonces.remove(head["nonce"])
        key = head.get("jwk") or self.accounts.get(head["kid"], {}).get("jwk")
        if key is None:
            return self._refuse("accountDoesNotExist", "There is no such account.")
        _verify(key, message)
        payload = json.loads(_decode(message["payload"])) if message["payload"] else None
        return getattr(self, f"_{resource}")(number, payload, key, head)  # type: ignore[no-any-return]

    def _account(
        self, number: str, payload: dict[str, Any], key: dict[str, str], head: dict[str, Any]
    ) -> httpx.Response:
        if number:
            self.accounts[f"{BASE}/account/{number}"]["contact"] = payload["contact"]
            return self._respond(200, {"status": "valid"})
        for url, known in self.accounts.items():
            if known["jwk"] == key:
                return self._respond(200, {"status": "valid"}, {"location": url})
        if not payload.get("termsOfServiceAgreed"):
            return self._refuse("userActionRequired", "The terms have to be agreed to.")
        if self.external and not self._bound(payload.get("externalAccountBinding"), key, head["url"]):
            return self._refuse("externalAccountRequired", "An account of ours is needed.")
        url = f"{BASE}/account/{next(self._numbers)}"
        self.accounts[url] = {"jwk": key, "contact": payload["contact"]}
        return self._respond(201, {"status": "valid"}, {"location": url})

    def _bound(self, binding: dict[str, str] | None, key: dict[str, str], url: str) -> bool:
        if binding is None:
            return False
        head = json.loads(_decode(binding["protected"]))
        mac = hmac.digest(self.external[head["kid"]], f"{binding['protected']}.{binding['payload']}".encode(), "sha256")
        return (
            head["url"] == url
            and json.loads(_decode(binding["payload"])) == key
            and _decode(binding["signature"]) == mac
        )

    def _neworder(self, number: str, payload: dict[str, Any], *_: object) -> httpx.Response:
        made = str(next(self._numbers))
        self.replaced.append(payload.get("replaces"))
        if payload.get("replaces") in self.replaced[:-1] and payload.get("replaces") is not None:
            return self._refuse("alreadyReplaced", "There is an order that replaces it.", 409)
        self.orders[made] = _Order([each["value"] for each in payload["identifiers"]])
        return self._order(made, None, status=201)

    def _order(self, number: str, payload: None, *_: object, status: int = 200) -> httpx.Response:
        order = self.orders.get(number)
        if order is None:
            return self._refuse("malformed", "There is no such order.", 404)
        if order.status == "processing":
            self.processing -= 1
            order.status = "processing" if self.processing > 0 else "valid"
        urls = {"finalize": f"{BASE}/finalize/{number}", "certificate": f"{BASE}/certificate/{number}"}
        if order.status != "valid":
            del urls["certificate"]
        body = {
            "status": order.status,
            "authorizations": [f"{BASE}/authorization/{number}-{place}" for place in range(len(order.names))],
            **urls,
            **({"error": order.error} if order.error else {}),
        }
        return self._respond(status, body, {"location": f"{BASE}/order/{number}", "retry-after": "0"})

    def _authorization(self, number: str, payload: None, *_: object) -> httpx.Response:
        order, name = self._of(number)
        token = f"token-{number}"
        found = self.verdict(token, name) if order.status == "invalid" else None
        status = "pending" if order.status == "pending" else "invalid" if found else "valid"
        # A wildcard is proven at the name that it stands below, and by DNS alone (RFC 8555, section 7.1.4).
        types = ["dns-01"] if name.startswith("*.") else ["dns-01", "http-01"]
        challenges = [
            {
                "type": each,
                "url": f"{BASE}/challenge/{number}",
                "token": token,
                "status": status,
                **({"error": found} if found else {}),
            }
            for each in types
        ]
        identifier = {"type": "dns", "value": name.removeprefix("*.")}
        wildcard = {"wildcard": True} if name.startswith("*.") else {}
        return self._respond(200, {"identifier": identifier, "status": status, "challenges": challenges} | wildcard)

    def _challenge(self, number: str, payload: dict[str, Any], *_: object) -> httpx.Response:
        order, name = self._of(number)
        assert payload == {}
        if self.verdict(f"token-{number}", name):
            order.status = "invalid"
        elif order.status == "pending" and number.endswith(f"-{len(order.names) - 1}"):
            order.status = "ready"
        return self._respond(200, {"type": "http-01", "url": f"{BASE}/challenge/{number}", "status": "processing"})

    def _finalize(self, number: str, payload: dict[str, str], *_: object) -> httpx.Response:
        order = self.orders[number]
        if order.status != "ready":
            return self._refuse("orderNotReady", f"The order is {order.status}.", 403)
        request = x509.load_der_x509_csr(_decode(payload["csr"]))
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert sorted(names.get_values_for_type(x509.DNSName)) == sorted(order.names)
        assert request.is_signature_valid
        key = request.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        made = _certificate(order.names[0], key, "Test Authority", self._key, self.lifetime, order.names)
        order.chain = made.public_bytes(serialization.Encoding.PEM).decode() + self.root_pem
        order.status = "processing" if self.processing > 0 else "valid"
        return self._order(number, None)

    def _certificate(self, number: str, *_: object) -> httpx.Response:
        return self._respond(200, None, text=self.orders[number].chain)

    def _of(self, number: str) -> tuple[_Order, str]:
        order, _, place = number.partition("-")
        return self.orders[order], self.orders[order].names[int(place)]

    def _refuse(self, kind: str, detail: str, status: int = 400) -> httpx.Response:
        return self._respond(status, {"type": _PREFIX + kind, "detail": detail})

    def _respond(
        self, status: int, body: object, headers: Mapping[str, str] | None = None, text: str = ""
    ) -> httpx.Response:
        nonce = f"nonce-{next(self._numbers)}"
        self._nonces.add(nonce)
        given = {"replay-nonce": nonce} | dict(headers or {})
        return httpx.Response(status, headers=given, content=text if body is None else json.dumps(body))


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
    names: list[str] | None = None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
    )
    if names is not None:
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(issuer_id, critical=False)
        alternatives = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _verify(key: dict[str, str], message: dict[str, str]) -> None:
    """Raises `InvalidSignature`."""
    x, y = (int.from_bytes(_decode(key[name]), "big") for name in ("x", "y"))
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    signature = _decode(message["signature"])
    assert len(signature) == 64
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    what = f"{message['protected']}.{message['payload']}".encode()
    public.verify(encode_dss_signature(r, s), what, ec.ECDSA(hashes.SHA256()))


def thumbprint(jwk: Mapping[str, str]) -> str:
    members = json.dumps({name: jwk[name] for name in sorted(jwk)}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(members.encode()).digest()).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
