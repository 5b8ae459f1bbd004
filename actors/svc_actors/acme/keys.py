"""Keys of accounts and certificates, all of them ECDSA P-256, and what is signed with them: JWS (RFC 7515) and CSRs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

Key = ec.EllipticCurvePrivateKey

_COORDINATE = 32
"""Bytes of one number of a P-256 point or signature (RFC 7518, 3.4 and 6.2)."""


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes) -> Key:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key is of another kind than it was made with")
    return key


def signing_request(key: Key, names: Sequence[str]) -> bytes:
    """A CSR for the key and these names or addresses, in DER."""
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.DER)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def jwk(key: Key) -> dict[str, str]:
    """The public key as a JSON Web Key (RFC 7517), its members in the order of their names."""
    numbers = key.public_key().public_numbers()
    x, y = (base64url(number.to_bytes(_COORDINATE, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def thumbprint(key: Key) -> str:
    """RFC 7638: the SHA-256 of the key's JSON without white space, in base64url."""
    return base64url(hashlib.sha256(_json(jwk(key))).digest())


def signed(key: Key, protected: Mapping[str, Any], payload: Mapping[str, Any] | None) -> dict[str, str]:
    """A flattened JWS with ES256. Without a payload it is a POST-as-GET (RFC 8555, 6.3)."""
    head, body = _encoded({"alg": "ES256"} | dict(protected), payload)
    r, s = decode_dss_signature(key.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256())))
    signature = r.to_bytes(_COORDINATE, "big") + s.to_bytes(_COORDINATE, "big")
    return {"protected": head, "payload": body, "signature": base64url(signature)}


def bound(key: Key, url: str, key_id: str, mac_key: bytes) -> dict[str, str]:
    """The public key signed with the authority's own key for a customer: an external account binding (RFC 8555,
    7.3.4)."""
    head, body = _encoded({"alg": "HS256", "kid": key_id, "url": url}, jwk(key))
    return {
        "protected": head,
        "payload": body,
        "signature": base64url(hmac.digest(mac_key, f"{head}.{body}".encode(), "sha256")),
    }


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Decode base64url without padding. Raises `ValueError`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encoded(protected: Mapping[str, Any], payload: Mapping[str, Any] | None) -> tuple[str, str]:
    return base64url(_json(protected)), "" if payload is None else base64url(_json(payload))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
