"""The messages between a certificate's actor and the `Keeper` that works for it: the next step, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from svc_actors.acme import AcmeError, ChallengeType
from svc_actors.store import Transaction


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done before `until`."""

    until: datetime


@dataclass(frozen=True)
class IssuingAttempt:
    """The data of an attempt: keys in PEM, and URLs as far as they are known."""

    names: tuple[str, ...]
    challenge: ChallengeType
    directory: str
    account_key: bytes
    account_url: str | None
    key: bytes
    order_url: str | None
    replaces: str | None
    """The current certificate, as the authority names it."""


@dataclass(frozen=True)
class RenewalCheck:
    """The authority is to be asked when it would have `certificate` renewed."""

    certificate: str
    directory: str
    account_key: bytes


Step = Wait | IssuingAttempt | RenewalCheck


@dataclass(frozen=True)
class CertificateWithKey:
    """A certificate with its chain and its key, in PEM."""

    chain: str
    key: bytes


@dataclass(frozen=True)
class IssuanceFailure:
    """A certificate that could not be issued, or that was issued without `names` (then `partly` is set). `not_after`:
    the end of the current certificate, None if there is none."""

    name: str
    names: tuple[str, ...]
    error: AcmeError
    not_after: datetime | None
    next_attempt_at: datetime
    partly: bool = False


Tell = Callable[[Transaction, IssuanceFailure], Awaitable[None]]
