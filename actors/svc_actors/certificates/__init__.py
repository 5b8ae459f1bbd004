"""Certificates by ACME: orders them, proves control of their names, renews them, and stores them sealed."""

from svc_actors.certificates.chain import covers, names_of
from svc_actors.certificates.issuing import IssuedCertificate, IssuingServices, alert_of
from svc_actors.certificates.keeper import Keeper
from svc_actors.certificates.records import CertificateRecord, read_certificate
from svc_actors.certificates.settings import LETS_ENCRYPT, AcmeSettings
from svc_actors.certificates.steps import CertificateWithKey, IssuanceFailure

__all__ = [
    "LETS_ENCRYPT",
    "AcmeSettings",
    "CertificateRecord",
    "CertificateWithKey",
    "IssuanceFailure",
    "IssuedCertificate",
    "IssuingServices",
    "Keeper",
    "alert_of",
    "covers",
    "names_of",
    "read_certificate",
]
