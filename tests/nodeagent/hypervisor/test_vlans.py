"""A bridged NIC's VLAN, in the commands that a host is given: not every kernel that runs tests keeps VLANs apart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import taps
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import TapPlan, Uplink, plan
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.hypervisor.preflight import NetworkFeatures
from svc_nodeagent.protocol import NetworkSpec, Topology
from tests.nodeagent.hypervisor.builders import nic

BRIDGE = Uplink("br-out", vlans=True)


def tap_in(vlan: int | None) -> TapPlan:
    spec = nic(topology=Topology.BRIDGED).model_copy(update={"vlan": vlan})
    (tap,) = plan(uuid4(), NetworkSpec(nics=(spec,)), Naming(), BRIDGE)
    return tap


class Port:
    """The tap as a port of the bridge: its VLANs, and every command in its order."""

    def __init__(self, *vlans: int) -> None:
        self.vlans = set(vlans)
        self.commands: list[str] = []

    async def run(self, program: str, *arguments: str, stdin: bytes = b"", **_: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        if program == "ip":
            self.commands += stdin.decode().splitlines()
        elif "show" in arguments:
            return json.dumps([{"ifname": "tap", "vlans": [{"vlan": each} for each in self.vlans]}]).encode()
        else:
            what, vid = arguments[1], int(arguments[5])
            self.commands.append(f"vlan {what} {vid}")
            (self.vlans.add if what == "add" else self.vlans.discard)(vid)
        return b""


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a kernel that keeps VLANs apart; gives its settings."""
    settings = tmp_path / BRIDGE.bridge / "bridge"
    settings.mkdir(parents=True)
    (settings / "vlan_filtering").write_text("1\n")
    (settings / "default_pvid").write_text("1\n")
    monkeypatch.setattr(taps, "_CLASS", tmp_path)
    monkeypatch.setattr(taps, "_SETTINGS", tmp_path)
    return settings


def seen(tap: TapPlan, *, bridge: str | None) -> Iterable[tuple[str, SeenTap]]:
    yield tap.device, SeenTap(tap.device, "", True, 1500, bridge, frozenset(), False, frozenset())


@pytest.mark.parametrize("was_running", [False, True], ids=["new", "of a running guest"])
async def test_a_nic_is_in_its_vlan_before_it_carries_anything(
    monkeypatch: pytest.MonkeyPatch, bridge: Path, was_running: bool
) -> None:
    tap, port = tap_in(7), Port(1)
    monkeypatch.setattr(taps, "run_program", port.run)
    await HostNetwork(Naming(), {})._open((tap,), dict(seen(tap, bridge=None) if was_running else ()))
    expected = [f"link set dev {tap.device} {change}" for change in ("down", f"master {BRIDGE.bridge}")]
    assert port.commands == [*expected, "vlan del 1", "vlan add 7", f"link set dev {tap.device} up"]


async def test_a_nic_that_stands_is_not_taken_down(monkeypatch: pytest.MonkeyPatch, bridge: Path) -> None:
    tap, port = tap_in(7), Port(7)
    monkeypatch.setattr(taps, "run_program", port.run)
    await HostNetwork(Naming(), {})._open((tap,), dict(seen(tap, bridge=BRIDGE.bridge)))
    assert port.commands == []


@pytest.mark.parametrize(("begins_in", "left"), [(1, {1}), (0, set())])
async def test_a_nic_whose_pool_has_no_vlan_any_more_leaves_it(
    monkeypatch: pytest.MonkeyPatch, bridge: Path, begins_in: int, left: set[int]
) -> None:
    port = Port(7)
    (bridge / "default_pvid").write_text(f"{begins_in}\n")
    monkeypatch.setattr(taps, "run_program", port.run)
    await taps.set_vlan(tap_in(None))
    assert port.vlans == left


async def test_a_nic_of_a_vlan_is_plugged_into_no_bridge_where_it_would_be_in_everybodys(
    monkeypatch: pytest.MonkeyPatch, bridge: Path
) -> None:
    tap, port = tap_in(7), Port(1)
    (bridge / "vlan_filtering").write_text("0\n")
    monkeypatch.setattr(taps, "run_program", port.run)
    with pytest.raises(HostError) as refused:
        await HostNetwork(Naming(), {}, uplink=BRIDGE)._change(tap.vm_id, NetworkSpec(nics=(tap.nic,)))
    assert "does not filter VLANs" in refused.value.message
    assert port.commands == []
    await HostNetwork(Naming(), {})._open((tap,), {})
    assert port.commands == [f"link set dev {tap.device} up"]
    assert not taps.is_unplugged(tap)


@pytest.mark.parametrize(
    ("lacks", "vlans"), [({}, True), ({"vlan": "no"}, False), ({"bridged": "away", "vlan": "away"}, True)]
)
def test_a_bridge_that_is_away_is_still_what_nics_are_plugged_into(lacks: dict[str, str], vlans: bool) -> None:
    """An agent that starts meanwhile leaves the taps of running guests."""
    found = tuple({"bridged", "vlan"} - lacks.keys())
    features = NetworkFeatures(found=found, lacks=lacks, kernel_bridges=True)
    assert features.uplink("br-out") == Uplink("br-out", vlans=vlans)
    assert features.uplink(None) is None
    assert NetworkFeatures(found=(), lacks=lacks, kernel_bridges=False).uplink("br-out") is None


async def test_a_bridge_that_keeps_no_vlans_apart_is_not_asked(monkeypatch: pytest.MonkeyPatch, bridge: Path) -> None:
    port = Port(1)
    (bridge / "vlan_filtering").unlink()
    monkeypatch.setattr(taps, "run_program", port.run)
    await taps.set_vlan(tap_in(None))
    assert port.commands == []
    assert port.vlans == {1}
