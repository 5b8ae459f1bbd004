"""Finds the operation for a method and a path.

Invariant: a literal segment wins over a placeholder, whatever the order of declaration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic

from svc.registry.operation import Method, ServicesT
from svc.registry.registry import Entry


@dataclass
class _Node(Generic[ServicesT]):
    spelled: dict[str, _Node[ServicesT]] = field(default_factory=dict)
    placeholder: _Node[ServicesT] | None = None
    entries: dict[str, Entry[ServicesT]] = field(default_factory=dict)


@dataclass(frozen=True)
class RouteMatch(Generic[ServicesT]):
    """The operations at a path, by method, and the path's values in order."""

    entries: dict[str, Entry[ServicesT]]
    values: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The value of the Allow header (RFC 9110, section 10.2.1)."""
        methods = set(self.entries)
        return ", ".join(sorted(methods | {"HEAD"} if Method.GET in methods else methods))


class Routes(Generic[ServicesT]):
    def __init__(self, entries: Iterable[Entry[ServicesT]]) -> None:
        self._root: _Node[ServicesT] = _Node()
        for entry in entries:
            node = self._root
            for segment in entry.operation.route.path[1:].split("/"):
                if segment.startswith("{"):
                    node.placeholder = node.placeholder or _Node()
                    node = node.placeholder
                else:
                    node = node.spelled.setdefault(segment, _Node())
            node.entries[entry.operation.route.method.value] = entry

    def find(self, path: str) -> RouteMatch[ServicesT] | None:
        """The match for `path` (below the prefix, decoded), or None."""
        return _find(self._root, path[1:].split("/"), ())


def _find(node: _Node[ServicesT], segments: list[str], values: tuple[str, ...]) -> RouteMatch[ServicesT] | None:
    if not segments:
        return RouteMatch(node.entries, values) if node.entries else None
    segment, rest = segments[0], segments[1:]
    spelled = node.spelled.get(segment)
    if spelled is not None and (match := _find(spelled, rest, values)) is not None:
        return match
    if node.placeholder is not None and segment:
        return _find(node.placeholder, rest, (*values, segment))
    return None
