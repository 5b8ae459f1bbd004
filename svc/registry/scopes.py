"""What a token may do: a service's policy of scopes.

A scope narrows its owner's authority and never widens it: it is checked before the role, on every call. `None` instead
of a set of scopes is the owner's full authority, which a browser session also has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Scope(StrEnum):
    """The scopes of a service that lists them. `ADMIN` contains the others; `WRITE` contains `READ`. `PROVISION` opens
    /provision and nothing else."""

    READ = "read"
    WRITE = "write"
    PROVISION = "provision"
    ADMIN = "admin"


class Scoped(Protocol):
    """The properties of an operation that a policy uses."""

    @property
    def name(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def mutates(self) -> bool: ...

    @property
    def secret(self) -> bool: ...


class ScopePolicy(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """The scopes that a token can be given."""
        ...

    def closed(self, scopes: Iterable[str]) -> frozenset[str]:
        """The scopes together with those that they contain."""
        ...

    def allows(self, scopes: frozenset[str], operation: Scoped) -> bool:
        """Whether a token with these (closed) scopes may call the operation. An unknown scope allows nothing."""
        ...

    def narrowest(self, operation: Scoped) -> str:
        """The narrowest scope that would suffice, for the message of a refusal."""
        ...


class ListedScopes:
    """Every operation names the scope that it needs (vm-controller-api.md, Authentication)."""

    names: tuple[str, ...] = tuple(Scope)

    def closed(self, scopes: Iterable[str]) -> frozenset[str]:
        given = frozenset(scopes)
        if Scope.ADMIN in given:
            return frozenset(self.names)
        return given | {Scope.READ} if Scope.WRITE in given else given

    def allows(self, scopes: frozenset[str], operation: Scoped) -> bool:
        return operation.scope in scopes

    def narrowest(self, operation: Scoped) -> str:
        return operation.scope.value


@dataclass(frozen=True)
class Area:
    """Operations by prefixes of their names, which end at a dot: `site` includes site.create and excludes sitemap.show.
    No prefix includes every operation. `reads_only` excludes operations that change something or reveal a secret: a
    token that may look must not take."""

    prefixes: tuple[str, ...] = ()
    reads_only: bool = False

    def holds(self, operation: Scoped) -> bool:
        if self.reads_only and (operation.mutates or operation.secret):
            return False
        return not self.prefixes or any(operation.name.startswith(f"{prefix}.") for prefix in self.prefixes)

    def contains(self, other: Area) -> bool:
        """Whether this area includes every operation of the other."""
        if self.reads_only and not other.reads_only:
            return False
        return not self.prefixes or (bool(other.prefixes) and set(other.prefixes) <= set(self.prefixes))


class PrefixScopes:
    """A scope is an area of operation names (the panel's specification, Authentication)."""

    def __init__(self, areas: Mapping[str, Area]) -> None:
        self._areas = dict(areas)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._areas)

    def closed(self, scopes: Iterable[str]) -> frozenset[str]:
        given = [self._areas[scope] for scope in scopes if scope in self._areas]
        return frozenset(name for name, area in self._areas.items() if any(each.contains(area) for each in given))

    def allows(self, scopes: frozenset[str], operation: Scoped) -> bool:
        return any(self._areas[scope].holds(operation) for scope in scopes & self._areas.keys())

    def narrowest(self, operation: Scoped) -> str:
        fitting = [name for name, area in self._areas.items() if area.holds(operation)]
        # An area with prefixes is narrower than one without, so it is preferred.
        return min(fitting, key=lambda name: not self._areas[name].prefixes)
