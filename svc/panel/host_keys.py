"""Host keys of other servers, which a person confirms before anything is sent there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from svc.registry.operation import Model
from svc.registry.shapes import Shape
from svc_actors.panel.imports.foreign_hosts import HostKey
from svc_common.errors import conflict

Fingerprint = Annotated[
    str,
    Field(max_length=50, description="The fingerprint of the host's key."),
    Shape(r"SHA256:[A-Za-z0-9+/]{43}", "a fingerprint such as ssh-keygen -l shows, SHA256:..."),
]


class ShownKey(Model):
    """As `ssh-keygen -l` shows it."""

    type: str
    fingerprint: str

    @classmethod
    def of(cls, key: HostKey) -> ShownKey:
        return cls(type=key.type, fingerprint=key.fingerprint)


def confirmed(keys: Sequence[HostKey], fingerprint: str, host: str) -> HostKey:
    """The host's key with this fingerprint. Raises `conflict` if it shows none."""
    for key in keys:
        if key.fingerprint == fingerprint:
            return key
    raise conflict(
        f"{host} presents another host key than {fingerprint}; nothing was sent to it.",
        hint="Find out why: the connection may be intercepted. Without host_key, the answer has the keys that it "
        "presents now.",
    )
