"""The names in a site's certificate: its own, and wildcards that its owner has chosen.

Invariant: a wildcard stays within the registrable domains of the site's own names, and all names of such a domain
belong to one customer. Names that a wildcard covers are left out, since authorities refuse to certify a name twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from svc_actors.panel.sites.names import site_name
from svc_common.errors import ServiceError, wrong_field
from svc_webhost.knot.names import is_within

WILDCARD = "*."


@dataclass(frozen=True)
class SiteNames:
    """`own`: the site's names, the domain first. `zones`: their registrable domains."""

    own: tuple[str, ...]
    zones: tuple[str, ...]

    def certified(self, wildcards: Iterable[str]) -> list[str]:
        """The names to certify. Wildcards of domains in which the site no longer has a name are dropped."""
        kept = [each for each in dict.fromkeys(wildcards) if self.may_have(each)]
        return [name for name in self.own if f"{WILDCARD}{name.partition('.')[2]}" not in kept] + kept

    def may_have(self, wildcard: str) -> bool:
        return any(is_within(wildcard.removeprefix(WILDCARD), zone) for zone in self.zones)


def wildcards_of(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(WILDCARD)]


def chosen_wildcards(given: Sequence[str], names: SiteNames) -> list[str]:
    """The wildcards that a caller has given, normalised. Raises `invalid`."""
    found: list[str] = []
    for text in given:
        star, _, base = text.strip().partition(".")
        if star != "*":
            raise wrong_field("wildcards", f"{text} is not a wildcard such as *.example.com: names come from the site")
        try:
            wildcard = f"{WILDCARD}{site_name(base).name}"
        except ServiceError as error:
            raise wrong_field("wildcards", f"{text}: {error.message}") from error
        if not names.may_have(wildcard):
            raise wrong_field("wildcards", f"{wildcard} is not within the domains of this site: {_listed(names.zones)}")
        found.append(wildcard)
    return sorted(set(found))


def _listed(zones: Collection[str]) -> str:
    return ", ".join(sorted(zones))
