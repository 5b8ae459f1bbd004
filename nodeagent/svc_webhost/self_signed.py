"""A self-signed certificate for the panel's own listener, until it has one from an authority."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from svc_common.durable import write_whole

_LIFETIME: Final = timedelta(days=397)
"""The longest lifetime that browsers accept."""
_RENEWED_BEFORE: Final = timedelta(days=30)


def keep_self_signed(folder: Path, names: Sequence[str], group: int) -> str:
    """Ensures `certificate.pem` and `key.pem` in `folder`, readable by `group` alone: created if they are missing, near
    their end or for other names. Returns the certificate's SHA-256."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    os.chown(folder, -1, group)
    # With the set-gid bit, the group can also read files that are created later.
    folder.chmod(0o2750)
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    kept = _kept(certificate_file, key_file, names)
    if kept is None:
        key = ec.generate_private_key(ec.SECP256R1())
        kept = _made(key, names)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_whole(key_file, pem, mode=0o640)
        write_whole(certificate_file, kept.public_bytes(serialization.Encoding.PEM), mode=0o640)
    for file in (certificate_file, key_file):
        os.chown(file, -1, group)
    return hashlib.sha256(kept.public_bytes(serialization.Encoding.DER)).hexdigest()


def _kept(certificate_file: Path, key_file: Path, names: Sequence[str]) -> x509.Certificate | None:
    try:
        kept = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        its_names = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return None
    good = (
        key.public_key() == kept.public_key()
        and set(its_names) == set(_general(names))
        and kept.not_valid_after_utc - _RENEWED_BEFORE > datetime.now(UTC)
    )
    return kept if good else None


def _made(key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(_general(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
        .sign(key, hashes.SHA256())
    )


def _general(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_one(name) for name in names]


def _one(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
