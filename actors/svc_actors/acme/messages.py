"""Models of authorities' answers (RFC 8555, section 7.1). They have the members that this client reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from svc_actors.acme.errors import AcmeError, refused


class Status(StrEnum):
    """The statuses of orders, authorizations and challenges. Each of these three has only some of them."""

    PENDING = "pending"
    READY = "ready"
    PROCESSING = "processing"
    VALID = "valid"
    INVALID = "invalid"
    DEACTIVATED = "deactivated"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ChallengeType(StrEnum):
    HTTP_01 = "http-01"
    DNS_01 = "dns-01"


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Meta(_Answer):
    terms: str | None = Field(None, alias="termsOfService")
    external_account_required: bool = Field(False, alias="externalAccountRequired")
    caa_identities: tuple[str, ...] = Field((), alias="caaIdentities")
    """The authority's names in CAA records."""


class Directory(_Answer):
    """The authority's URLs, one for each kind of request."""

    new_nonce: str = Field(alias="newNonce")
    new_account: str = Field(alias="newAccount")
    new_order: str = Field(alias="newOrder")
    renewal_info: str | None = Field(None, alias="renewalInfo")
    meta: Meta = Meta()


class Window(_Answer):
    start: AwareDatetime
    end: AwareDatetime


class RenewalInfo(_Answer):
    """The window in which the authority suggests renewing a certificate (RFC 9773, section 4.2). `retry_after`: seconds
    until the next query, if the authority names them."""

    window: Window = Field(alias="suggestedWindow")
    explanation: str | None = Field(None, alias="explanationURL")
    retry_after: float | None = None


class Challenge(_Answer):
    type: str
    url: str
    status: Status = Status.PENDING
    token: str = ""
    error: dict[str, Any] | None = None


class Identifier(_Answer):
    type: str
    value: str


class Authorization(_Answer):
    """The proof that the account may have certificates for one name."""

    identifier: Identifier
    status: Status
    challenges: tuple[Challenge, ...] = ()
    wildcard: bool = False

    def challenge(self, of_type: ChallengeType) -> Challenge | None:
        return next((each for each in self.challenges if each.type == of_type), None)

    @property
    def name(self) -> str:
        """The name as it was ordered: the identifier in the answer has no `*.` (RFC 8555, section 7.1.4)."""
        return f"*.{self.identifier.value}" if self.wildcard else self.identifier.value

    @property
    def problem(self) -> AcmeError | None:
        """Why the authorization failed, in the authority's words."""
        failed = next((each.error for each in self.challenges if each.error), None)
        return refused(failed) if failed and self.status is Status.INVALID else None


class Order(_Answer):
    """`url`: the order's own URL, for polling. `retry_after`: seconds until the next request, if the authority names
    them."""

    url: str
    status: Status
    authorizations: tuple[str, ...]
    finalize: str
    certificate: str | None = None
    error: dict[str, Any] | None = None
    retry_after: float | None = None
