"""The names of the agent's things on the host. By these names the agent recognises what it has created, and leaves the
rest alone.

Two agents on one host (a product and its tests) differ in all three names and never touch each other's things.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

_DIGITS, _TAP_DIGITS = frozenset("0123456789abcdef"), 11


@dataclass(frozen=True)
class Naming:
    """Every tap's name starts with `device_prefix` (a device name has at most 15 characters)."""

    domain_prefix: str = "svc-"
    device_prefix: str = "svc"
    table: str = "svc"

    def __post_init__(self) -> None:
        if not 1 <= len(self.device_prefix) <= 4 or not self.device_prefix.isalnum():
            raise ValueError("a device prefix is one to four letters or digits")

    def domain(self, vm_id: UUID) -> str:
        return f"{self.domain_prefix}{vm_id}"

    def machine(self, uuid: UUID, domain: str) -> UUID | None:
        """The machine of a domain, by the domain's UUID and name; None for a domain that is not ours."""
        return uuid if domain == self.domain(uuid) else None

    def tap(self, nic_id: UUID) -> str:
        return f"{self.device_prefix}{nic_id.hex[:_TAP_DIGITS]}"

    def is_tap(self, device: str) -> bool:
        digits = device.removeprefix(self.device_prefix)
        return device != digits and len(digits) == _TAP_DIGITS and _DIGITS.issuperset(digits)
