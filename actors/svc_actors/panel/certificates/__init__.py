"""Certificates of sites: from ACME or uploaded, handed to the web server, and compared with those that it shows
visitors."""

from svc_actors.panel.certificates.leaf import CertificateError, ParsedCertificate, parsed
from svc_actors.panel.certificates.records import CertificateState, SiteCertificate, Source, read_site_certificate
from svc_actors.panel.certificates.site_certificates import SiteCertificates

__all__ = [
    "CertificateError",
    "CertificateState",
    "ParsedCertificate",
    "SiteCertificate",
    "SiteCertificates",
    "Source",
    "parsed",
    "read_site_certificate",
]
