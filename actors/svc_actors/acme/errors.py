"""Why an authority did not issue a certificate, in its own words if it gave any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_PREFIX: Final = "urn:ietf:params:acme:error:"


class AcmeError(Exception):
    """`retry_after`: the seconds that the authority asks to wait (RFC 8555, 6.6), if given."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AuthorityAway(AcmeError):  # noqa: N818 - named for what it says
    """The authority was not reached, or its answer was not one of ACME. The only remedy is to retry later."""


class RateLimited(AcmeError):  # noqa: N818
    """The authority's limit of orders, accounts or failed validations is reached for now."""


class Refused(AcmeError):  # noqa: N818
    """The authority answered with a problem (RFC 7807). `kind` is the last part of the problem's type: `dns`,
    `connection`, `unauthorized`, `accountDoesNotExist` ...; empty for a type that is not ACME's."""

    def __init__(self, message: str, *, kind: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.kind = kind


class NamesRefused(Refused):
    """The authority refused these names of an order, and said nothing against the others."""

    def __init__(self, message: str, names: Mapping[str, AcmeError], *, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.names = names


def kind_of(problem: Mapping[str, Any]) -> str:
    given = str(problem.get("type", ""))
    return given.removeprefix(_PREFIX) if given.startswith(_PREFIX) else ""


def words_of(problem: Mapping[str, Any]) -> str:
    """The text of a problem document, including its subproblems (RFC 8555, 6.7.1)."""
    return " ".join(dict.fromkeys(_words(problem))) or "The authority gave no reason."


def _words(problem: Mapping[str, Any]) -> Iterator[str]:
    said = str(problem.get("detail") or problem.get("title") or kind_of(problem))
    if said:
        yield said
    for part in problem.get("subproblems") or ():
        if isinstance(part, Mapping):
            identifier = part.get("identifier")
            name = f"{identifier.get('value')}: " if isinstance(identifier, Mapping) else ""
            yield f"{name}{part.get('detail') or kind_of(part)}"


def refused(problem: Mapping[str, Any], *, retry_after: float | None = None) -> AcmeError:
    """The error of a problem document."""
    if kind_of(problem) == "rateLimited":
        return RateLimited(words_of(problem), retry_after=retry_after)
    parts = {
        str(part["identifier"].get("value")): Refused(words_of(part), kind=kind_of(part))
        for part in problem.get("subproblems") or ()
        if isinstance(part, Mapping) and isinstance(part.get("identifier"), Mapping)
    }
    if parts:
        return NamesRefused(words_of(problem), parts, retry_after=retry_after)
    return Refused(words_of(problem), kind=kind_of(problem), retry_after=retry_after)
