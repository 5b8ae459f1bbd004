"""Operations on the certificates of sites: show, issue, upload and remove (the panel's specification: POST
/sites/{id}/ssl)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, SecretStr

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.acme import ChallengeType
from svc_actors.panel.certificates import CertificateState, Source, read_site_certificate
from svc_actors.panel.certificates.site_certificates import AFTER_FAILURE, CertificateOptions

operations = Operations[Panel]()

MOST_WILDCARDS = 20
Wildcard = Annotated[
    str,
    Field(min_length=5, max_length=255),
    Shape(
        r"\*\.[^\u0000-,/:-@\[-`{-\u00a0\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+",
        "a wildcard such as *.example.org",
    ),
]
_PEM = r"^[A-Za-z0-9+/=\s:.,()_-]+$"


class NameLeftOut(Model):
    """A name that the authority refused. `reason`: what it resolves to, what it should resolve to, and who can change
    that."""

    name: str
    reason: str


class CertificateView(Model):
    """`served`: this server presented it in a handshake; null before the first check. `challenge`, `wildcards`,
    `last_error`, `next_attempt_at` and `left_out` are about the order by ACME, if there is one. `left_out`: names of
    the site that are missing in the certificate; they are retried."""

    state: CertificateState
    source: Source | None
    names: list[str]
    issuer: str | None
    not_before: datetime | None
    not_after: datetime | None
    fingerprint: str | None
    served: bool | None
    challenge: ChallengeType | None
    wildcards: list[str]
    last_error: str | None
    next_attempt_at: datetime | None
    left_out: list[NameLeftOut]


class SiteCertificateRequest(SiteRequest):
    """Names the site."""


class CertificateIssueRequest(SiteChange):
    """Fields left out keep the previous choice, initially http-01 and no wildcards. Renewals use the same."""

    challenge: Annotated[
        ChallengeType | None,
        Field(description="How control of the names is proven: dns-01 by records in the zones of the site."),
    ] = None
    wildcards: Annotated[
        list[Wildcard] | None,
        Field(max_length=MOST_WILDCARDS, description="Wildcards such as *.example.org; only by dns-01."),
    ] = None


class CertificateRemoveRequest(SiteChange):
    """Names the site."""


class CertificateUploadRequest(SiteChange):
    """PEM: the certificate, then those of its issuers; and its private key, not encrypted."""

    certificate: Annotated[str, Field(pattern=_PEM, max_length=100_000)]
    key: Annotated[SecretStr, Field(max_length=20_000, repr=False)]


async def _view(context: Context[Panel], site_id: UUID) -> CertificateView:
    found = await read_site_certificate(context.services.database, site_id)
    return CertificateView(
        state=found.state,
        source=found.source,
        names=list(found.names),
        issuer=found.issuer,
        not_before=found.not_before,
        not_after=found.not_after,
        fingerprint=found.fingerprint,
        served=found.served,
        challenge=found.challenge,
        wildcards=list(found.wildcards),
        last_error=found.last_error,
        next_attempt_at=found.next_attempt_at,
        left_out=[NameLeftOut(name=each.name, reason=each.reason) for each in found.left_out],
    )


@operations.declare(
    "certificate.get",
    "The certificate that a site is served with",
    Route.get("/sites/{id}/ssl"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_certificate(context: Context[Panel], request: SiteCertificateRequest) -> CertificateView:
    await site_of(context.services.database, context.principal, request.id)
    return await _view(context, request.id)


@operations.declare(
    "certificate.issue",
    "Request a certificate for a site's names and wildcards by ACME now",
    Route.post("/sites/{id}/ssl"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def issue_certificate(context: Context[Panel], request: CertificateIssueRequest) -> CertificateView:
    # A wildcard also covers names of the account's other sites.
    site = await site_of(
        context.services.database, context.principal, request.id, whole_account=bool(request.wildcards)
    )
    # All sites share the server's account at the authority, for which administrators are responsible. So only
    # administrators may retry at once after a failure.
    patience = None if context.principal.is_operator else AFTER_FAILURE
    wish = CertificateOptions(request.challenge, request.wildcards)
    await context.services.certificates.issue(context.caller, site, wish, patience)
    return await _view(context, request.id)


@operations.declare(
    "certificate.upload",
    "Upload a certificate for a site",
    Route.put("/sites/{id}/ssl"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def upload_certificate(context: Context[Panel], request: CertificateUploadRequest) -> CertificateView:
    site = await site_of(context.services.database, context.principal, request.id)
    key = request.key.get_secret_value().encode()
    await context.services.certificates.upload(context.caller, site, request.certificate, key)
    return await _view(context, request.id)


@operations.declare(
    "certificate.remove",
    "Remove a site's certificate; if an authority is configured, a new one is requested",
    Route.delete("/sites/{id}/ssl"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def remove_certificate(context: Context[Panel], request: CertificateRemoveRequest) -> CertificateView:
    site = await site_of(context.services.database, context.principal, request.id)
    await context.services.certificates.remove(context.caller, site)
    return await _view(context, request.id)
