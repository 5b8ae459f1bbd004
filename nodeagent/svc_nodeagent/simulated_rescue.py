"""The rescue of a simulated machine: whether it boots its own disk, which is empty, or the rescue system."""

from __future__ import annotations

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode, ImageKind, RescueOperation, VmRescue


def in_rescue(operation: RescueOperation) -> bool:
    """Whether the machine is in rescue afterwards. Raises `HostError` as a real host does."""
    if not isinstance(operation, VmRescue):
        return False
    if operation.system.kind is not ImageKind.RESCUE:
        raise HostError(FailureCode.INVALID, f"The file {operation.system.name} is no rescue system.")
    return True
