"""Which addresses of its own a node keeps from the networks of machines."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import roads
from svc_nodeagent.protocol.values import MOST_SENTENCES

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

    found = await roads.ProtectedAddressFinder(Naming()).find()

    assert set(found.elsewhere) == {ip_address(each) for each in kept}


def test_a_node_with_many_addresses_tells_as_many_as_a_frame_takes_and_the_vital_ones_first() -> None:
    own = {ip_address(f"198.51.100.{number}"): "an address of this node (eth0)" for number in range(200)}
    told = roads.ProtectedAddresses({ip_address("192.0.2.1"): "the address of this node's controller"}, own).as_lacks()
    assert next(iter(told)) == "gateway:192.0.2.1"
    assert len(told) + 7 < MOST_SENTENCES, "beside the seven features that a host may lack"
