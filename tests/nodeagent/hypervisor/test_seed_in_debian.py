"""What cloud-init of a full Debian 12 makes of the seed: at its first start, with user-data of the owner's or without,
and of another network at its second."""

from __future__ import annotations

from ipaddress import ip_interface, ip_network
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.seeds import write_seed
from svc_nodeagent.protocol import GuestAddress, NetworkSpec, NicSpec, Topology
from tests.nodeagent.hypervisor.builders import machine, record, seed
from tests.support.guest import MAC, Console, Guest, sha512_crypt
from tests.support.image_paths import IMAGES, TOOLS

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PASSWORD = "Kelp-marble-41"
BOOT, ANSWER = 600.0, 120.0


@pytest.fixture
async def debian_image() -> Path:
    image = IMAGES / "debian-12.qcow2"
    await trio.run_process([TOOLS / "build-debian", image], capture_stderr=True)
    return image


def address(text: str, gateway: str, *, primary: bool = False) -> GuestAddress:
    interface = ip_interface(text)
    network = interface.network if interface.version == 6 else ip_network(interface.ip)
    return GuestAddress(
        interface=interface,
        network=network,
        gateway=gateway,
        on_link=True,
        topology=Topology.ROUTED,
        primary=primary,
    )


def network(*addresses: GuestAddress) -> NetworkSpec:
    return NetworkSpec(nics=(NicSpec(nic_id=uuid4(), mac=MAC, addresses=addresses),))


async def logged_in(guest: Guest) -> Console:
    await guest.console.expect("web-1 login: $", BOOT)
    assert await guest.console.try_to_log_in("alice", PASSWORD, within=ANSWER)
    return guest.console


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "user_data",
    [
        "#!/bin/sh\necho by-the-owner >/greeting\n",
        "#cloud-config\nwrite_files:\n- path: /greeting\n  content: |\n    by-the-owner\n",
    ],
    ids=["script", "cloud-config"],
)
async def test_a_debian_does_as_its_seed_says_and_takes_its_network_anew_at_the_next_start(
    debian_image: Path, tmp_path: Path, user_data: str
) -> None:
    first = address("192.0.2.5/32", "192.0.2.1", primary=True)
    second, sixth = address("198.51.100.7/32", "198.51.100.1"), address("2001:db8:0:5::1/64", "fe80::1")
    of_owner = seed("alice", password_hash="", user_data=user_data)
    made = record(machine(network(first, second), seeded=of_owner))
    path = tmp_path / "seed.iso"

    await write_seed(made, sha512_crypt(PASSWORD), path, (0, 0))
    async with Guest.started(debian_image, path, tmp_path, memory=512) as guest:
        console = await logged_in(guest)
        shown = await console.run("ip -brief address show eth0", within=ANSWER)
        assert "192.0.2.5/32" in shown
        assert "198.51.100.7/32" in shown
        assert "done" in await console.run("cloud-init status --wait", within=BOOT)
        assert "by-the-owner" in await console.run("cat /greeting", within=ANSWER)
        assert "uid=0" in await console.run("sudo id", within=ANSWER)
        assert await guest.press_power_button(within=ANSWER * 2) == 0

    await write_seed(made.model_copy(update={"network": network(first, sixth)}), None, path, (0, 0))
    async with Guest.started(debian_image, path, tmp_path, memory=512) as guest:
        console = await logged_in(guest)
        shown = await console.run("ip -brief address show eth0", within=ANSWER)
        assert "192.0.2.5/32" in shown
        assert "2001:db8:0:5::1/64" in shown
        assert "198.51.100.7" not in shown
        assert "default via 192.0.2.1" in await console.run("ip -4 route", within=ANSWER)
        assert "default via fe80::1" in await console.run("ip -6 route", within=ANSWER)
