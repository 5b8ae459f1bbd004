"""What a host says of itself."""

from __future__ import annotations

from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor.inventory import host_addresses
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.programs import run_program

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_the_hosts_addresses_are_its_own_and_not_those_at_guests_taps(naming: Naming) -> None:
    tap, own = naming.tap(uuid4()), f"{naming.device_prefix}-own"
    for device, address in ((tap, "203.0.113.77/32"), (own, "203.0.113.78/28")):
        await run_program("ip", "tuntap", "add", "dev", device, "mode", "tap")
        await run_program("ip", "address", "add", address, "dev", device)
    try:
        found = await host_addresses(naming)
    finally:
        for device in (tap, own):
            await run_program("ip", "link", "del", device)
    assert "203.0.113.78/28" in found
    assert "203.0.113.77/32" not in found
    assert not any(address.startswith(("127.", "fe80:", "::1/")) for address in found)
