"""Versions of the protocol, and how two ends of different releases agree on one.

A release speaks its own version and the previous one, so that the controller and its agents are upgraded one after the
other, in any order. The agent names the versions that it speaks as websocket subprotocols (`svc-agent.5`), the
controller chooses the newest that both speak. An end that names none predates this, and speaks version 3.

Rules for a change:

- additions of a version are marked: `Facts.since` of an operation, `Annotated[..., Since(5)]` of a field, which then
  has a default;
- a frame is sent by `encode`, which leaves out the fields that the other end cannot know;
- the controller does not order what an agent's version does not have: see `needed`;
- anything removed or changed in meaning changes two releases later, when no supported peer needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from svc_nodeagent.protocol.facts import Facts

PROTOCOL_VERSION: Final = 5
_UNNAMED: Final = 3
"""The version spoken before versions were named."""
_PREFIX: Final = "svc-agent."


@dataclass(frozen=True)
class Since:
    """Marks a field that older versions of the protocol do not have."""

    version: int


@dataclass(frozen=True)
class Versions:
    """The versions from `oldest` to `newest`, both included."""

    oldest: int
    newest: int

    @property
    def names(self) -> tuple[str, ...]:
        """The versions as websocket subprotocols, the newest first."""
        return tuple(name_of(version) for version in range(self.newest, self.oldest - 1, -1))

    def agree(self, offered: Iterable[int]) -> int | None:
        """The newest version that is both offered and spoken here; None if there is none."""
        return max((version for version in offered if self.oldest <= version <= self.newest), default=None)

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN: Final = Versions(PROTOCOL_VERSION - 1, PROTOCOL_VERSION)


def name_of(version: int) -> str:
    return f"{_PREFIX}{version}"


def offered_by(names: Iterable[str]) -> list[int]:
    """The versions among a peer's subprotocols, oldest first."""
    numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return sorted({int(number) for number in numbers if number.isdecimal()}) or [_UNNAMED]


def encode(frame: BaseModel, version: int) -> str:
    """The frame for a peer that speaks `version`."""
    if version >= PROTOCOL_VERSION:
        return frame.model_dump_json()
    return frame.model_dump_json(exclude=_newer_fields(frame, version))


def needed(operation: BaseModel) -> int:
    """The least version that a peer must speak to carry out the operation as ordered. A newer field that has its
    default value does not count."""
    facts: Facts | None = getattr(operation, "facts", None)
    return max([facts.since if facts is not None else 0, *_needed_by_fields(operation)])


def _newer_fields(value: object, version: int) -> dict[Any, Any]:
    """The fields that a peer of `version` does not know, in the form of pydantic's `exclude`: by name, and by position
    in a sequence."""
    found: dict[Any, Any] = {}
    for key, field, part in _parts(value):
        if field is not None and _since(field) > version:
            found[key] = True
        elif below := _newer_fields(part, version):
            found[key] = below
    return found


def _needed_by_fields(value: object) -> Iterable[int]:
    for _, field, part in _parts(value):
        if field is not None and part != field.get_default(call_default_factory=True):
            yield _since(field)
        yield from _needed_by_fields(part)


def _parts(value: object) -> Iterable[tuple[str | int, FieldInfo | None, object]]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield name, field, getattr(value, name)
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield place, None, part


def _since(field: FieldInfo) -> int:
    return max((mark.version for mark in field.metadata if isinstance(mark, Since)), default=0)
