"""Which nodes offer the firmware and the TPM that a machine needs.

Invariant: a machine is placed, moved, reinstalled and restored only on a node that has reported its firmware and its
TPM. A node that has not reported (an agent of an earlier release) counts as having a BIOS and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from svc_actors.store import Queryable
from svc_common.errors import conflict
from svc_nodeagent.protocol import TPM_FEATURE, Firmware, Platform

_UNTOLD: Final = "its agent is of an earlier release, which knows neither UEFI nor TPM: upgrade it"
_ABOUT: Final = {Firmware.UEFI.value: "firmware", Firmware.UEFI_SECURE.value: "firmware", TPM_FEATURE: "tpm"}


def platform_lacks(facts: Mapping[str, Any] | None, needs: tuple[str, ...]) -> list[str]:
    """Why a node with these facts cannot have machines with these needs. Each reason starts with `firmware:` or
    `tpm:`."""
    told = facts or {}
    # The node has a feature only if `platform_features` lists it. `platform_lacks` gives only the reason for a missing
    # one: a feature that is not in it may still be missing.
    features, lacks = told.get("platform_features") or (), told.get("platform_lacks") or {}
    missing = [need for need in needs if need not in features]
    return [f"{_ABOUT[need]}: {lacks.get(need, _UNTOLD)}" for need in missing]


async def require_platform(queryable: Queryable, node_id: UUID | None, platform: Platform) -> None:
    """Raises conflict if the machine's node does not offer this platform."""
    facts = await queryable.fetchval("SELECT facts FROM nodes WHERE id = $1", node_id)
    if reasons := platform_lacks(facts, platform.needs):
        raise conflict(
            f"The machine's node does not support this: {'; '.join(reasons)}. The machine was not changed.",
            hint="Move the machine to another node, or ask an administrator to fix that and run `svc node inventory`.",
            details={"reasons": reasons},
        )
