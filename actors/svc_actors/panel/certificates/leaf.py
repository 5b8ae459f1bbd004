"""Reads a certificate before it is served, and checks that the chain is complete, that the key fits, for which names it
is and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from svc_actors.certificates import covers, names_of

_SMALLEST_RSA = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""Curves that TLS supports and that OpenSSL accepts at its default security level."""


class CertificateError(Exception):
    """The certificate cannot be served; the message says why."""


@dataclass(frozen=True)
class ParsedCertificate:
    """`chain` starts with the certificate itself; `chain` and `key` are PEM. `fingerprint` is SHA-256, in hex."""

    chain: str
    key: bytes
    names: tuple[str, ...]
    issuer: str
    not_before: datetime
    not_after: datetime
    fingerprint: str

    def covers(self, name: str) -> bool:
        return covers(self.names, name)


def parsed(chain: str, key: bytes) -> ParsedCertificate:
    """Parses PEM text. Raises CertificateError if chain and key do not belong together, or cannot be served now."""
    try:
        certificates = x509.load_pem_x509_certificates(chain.encode())
        private = serialization.load_pem_private_key(key, password=None)
    except TypeError:
        raise CertificateError(
            "The key is encrypted: decrypt it first, the server reads it without a passphrase."
        ) from None
    except ValueError:
        raise CertificateError("The certificate or its key is not in PEM, or is cut short.") from None
    if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey):
        raise CertificateError("The key is of a kind that browsers do not accept: use RSA or ECDSA.")
    if isinstance(private, rsa.RSAPrivateKey) and private.key_size < _SMALLEST_RSA:
        raise CertificateError(f"An RSA key has at least {_SMALLEST_RSA} bits; this one has {private.key_size}.")
    if isinstance(private, ec.EllipticCurvePrivateKey) and not isinstance(private.curve, _CURVES):
        raise CertificateError("An ECDSA key is on one of the curves P-256, P-384 and P-521.")
    leaf = certificates[0]
    if leaf.public_key() != private.public_key():
        raise CertificateError("The key is not the certificate's.")
    for below, above in pairwise(certificates):
        try:
            below.verify_directly_issued_by(above)
        except (ValueError, TypeError, InvalidSignature):
            raise CertificateError(
                "The chain is not in order: after the certificate comes that of its issuer, then that one's."
            ) from None
    now = datetime.now(UTC)
    if leaf.not_valid_after_utc <= now:
        raise CertificateError(f"The certificate expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.")
    if leaf.not_valid_before_utc > now:
        raise CertificateError(f"The certificate is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.")
    names = names_of(leaf)
    if not names:
        raise CertificateError("The certificate has no name (no subject alternative name).")
    pem = "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in certificates)
    own_key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ParsedCertificate(
        chain=pem,
        key=own_key,
        names=tuple(name.lower() for name in names),
        issuer=leaf.issuer.rfc4514_string(),
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        fingerprint=leaf.fingerprint(hashes.SHA256()).hex(),
    )
