"""What a certificate says: its names, its issuer, and whether it is for a key."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cryptography import x509
from cryptography.x509.oid import NameOID

from svc_actors.acme import load_key


def names_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses of a certificate; empty without a subjectAltName."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def covers(names: Collection[str], name: str) -> bool:
    """Whether a certificate for `names` has this name, or a wildcard one label above (RFC 9525, section 6.3)."""
    return name in names or f"*.{name.partition('.')[2]}" in names


def leaf_of(chain: str, key: bytes, names: Sequence[str]) -> x509.Certificate:
    """The leaf certificate of a chain. Raises `ValueError` if it is not for this key and these names."""
    leaf = x509.load_pem_x509_certificate(chain.encode())
    if leaf.public_key() != load_key(key).public_key():
        raise ValueError("it is for another key")
    if missing := set(names) - set(names_of(leaf)):
        raise ValueError(f"it is not for {', '.join(sorted(missing))}")
    return leaf


def issuer_of(leaf: x509.Certificate) -> str:
    """The issuer in readable form: organisation and common name."""
    parts = [
        str(attribute.value)
        for oid in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
        for attribute in leaf.issuer.get_attributes_for_oid(oid)
    ]
    return " ".join(parts) or leaf.issuer.rfc4514_string()
