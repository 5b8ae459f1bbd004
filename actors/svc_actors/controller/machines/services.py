"""What the service that a machine belongs to says of it, as SQL of a row of `vms`.

It is read from the service's own row, where neither the machine's owner nor a security group reaches it
(vm-controller-api.md, Provisioning API, rule 2).
"""

from __future__ import annotations

from typing import Final

SOLD: Final = "EXISTS (SELECT FROM services WHERE services.vm_id = vms.id AND state <> 'terminated')"
"""It is what a billing system has sold, and ends with that."""

KEPT_OFF: Final = """EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'power_off' OR state IN ('provisioning_failed', 'terminated')))"""
"""It is not started, by whoever wants it."""

ISOLATED: Final = """(vms.traffic_isolated OR EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'network_isolate' OR state = 'terminated')))"""
"""Its host carries none of its traffic: for its service's sake, or for the traffic that it has used up."""
