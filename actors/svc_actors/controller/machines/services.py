"""Effects of a machine's service on it, as SQL conditions on a row of `vms`.

They are read from the service's own row, which neither the machine's owner nor a security group can change
(vm-controller-api.md, Provisioning API, rule 2).
"""

from __future__ import annotations

from typing import Final

SOLD: Final = "EXISTS (SELECT FROM services WHERE services.vm_id = vms.id AND state <> 'terminated')"
"""The machine belongs to a service that a billing system has sold, and is deleted when the service ends."""

KEPT_OFF: Final = """EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'power_off' OR state IN ('provisioning_failed', 'terminated')))"""
"""The machine must not be started by any order."""

ISOLATED: Final = """(vms.traffic_isolated OR EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'network_isolate' OR state = 'terminated')))"""
"""The host blocks all of the machine's traffic: its service is suspended with network isolation, or its traffic
allowance is used up."""
