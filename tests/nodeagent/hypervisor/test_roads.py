"""Which addresses of its own a node keeps from the networks of machines."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import roads

SEVERAL = (
    b'[{"dst":"default","flags":[],"nexthops":[{"gateway":"192.0.2.1","dev":"eth0","weight":1,"flags":[]},'
    b'{"gateway":"192.0.2.2","dev":"eth1","weight":1,"flags":[]}]}]'
)
OF_THE_OTHER_FAMILY = b'[{"dst":"default","via":{"family":"inet6","host":"2001:db8::1"},"dev":"eth0","flags":[]}]'


@pytest.mark.parametrize(
    ("said", "kept"),
    [(SEVERAL, {"192.0.2.1", "192.0.2.2"}), (OF_THE_OTHER_FAMILY, {"2001:db8::1"})],
    ids=["several", "of-the-other-family"],
)
async def test_every_next_hop_of_a_default_route_is_kept(
    monkeypatch: pytest.MonkeyPatch, said: bytes, kept: set[str]
) -> None:
    """In the words of iproute2."""

    async def run(*command: str) -> bytes:
        return said if "-4" in command else b"[]"

    monkeypatch.setattr(roads, "run_program", run)

    found = await roads.roads(Naming(), None)

    assert set(found) == {ip_address(each) for each in kept}
