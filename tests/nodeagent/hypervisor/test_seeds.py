"""The seed: what cloud-init is told, and what the host must not keep."""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor import seeds
from svc_nodeagent.hypervisor.files import MachineRecord, put_in_place
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.seeds import WORKSHOP, render, write_seed
from svc_nodeagent.protocol import GuestAddress, MachineSpec, NetworkSpec, NicSpec, SeedSpec, Topology
from tests.nodeagent.hypervisor.builders import machine as machine_with
from tests.nodeagent.hypervisor.builders import record, seed

HASH = "$6$rounds=5000$saltsalt$" + "x" * 86


def machine(networks: NetworkSpec | None = None, *, seeded: SeedSpec | None = None) -> MachineSpec:
    return machine_with(networks or NetworkSpec(nics=()), seeded=seeded)


def user_data(account: str = "alice", *, password_hash: str | None = None) -> dict[str, Any]:
    text = render(record(machine(seeded=seed(account))), password_hash)["user-data"]
    first, _, body = text.partition("\n")
    assert first == "#cloud-config"
    loaded: dict[str, Any] = json.loads(body)
    return loaded


def test_a_password_reaches_the_guest_as_its_hash_and_opens_the_account() -> None:
    user = user_data(password_hash=HASH)["users"][0]
    assert (user["hashed_passwd"], user["lock_passwd"]) == (HASH, False)
    assert user["sudo"]


def test_without_a_password_none_is_set() -> None:
    user = user_data()["users"][0]
    assert not user.keys() & {"hashed_passwd", "passwd", "plain_text_passwd", "lock_passwd"}


def test_root_is_offered_only_to_who_asked_for_it() -> None:
    assert user_data("root")["disable_root"] is False
    assert user_data("alice")["disable_root"] is True
    assert "sudo" not in user_data("root")["users"][0]


def address(text: str, gateway: str, *, primary: bool = False) -> GuestAddress:
    interface = ip_interface(text)
    network = interface.network if interface.version == 6 else ip_network(interface.ip)
    topology = Topology.ROUTED
    return GuestAddress(
        interface=interface, network=network, gateway=gateway, on_link=True, topology=topology, primary=primary
    )


def cards(*held: tuple[GuestAddress, ...]) -> list[dict[str, Any]]:
    nics = tuple(
        NicSpec(nic_id=uuid4(), mac=f"52:54:00:00:00:0{number}", addresses=addresses)
        for number, addresses in enumerate(held)
    )
    rendered = render(record(machine(NetworkSpec(nics=nics))), None)
    loaded: dict[str, Any] = json.loads(rendered["network-config"])
    assert loaded["version"] == 1
    return list(loaded["config"])


def test_every_nic_is_found_by_its_mac_and_only_the_first_leads_outside() -> None:
    first, second = cards((address("192.0.2.5/32", "192.0.2.1"),), (address("192.0.2.6/32", "192.0.2.1"),))
    assert (first["mac_address"], first["name"]) == ("52:54:00:00:00:00", "eth0")
    assert (second["mac_address"], second["name"]) == ("52:54:00:00:00:01", "eth1")
    assert [(each["address"], each["gateway"]) for each in first["subnets"]] == [("192.0.2.5/32", "192.0.2.1")]
    assert second["subnets"] == [{"type": "static", "address": "192.0.2.6/32"}]


def test_each_family_leads_outside_by_the_gateway_of_its_primary_address() -> None:
    (nic,) = cards(
        (
            address("198.51.100.7/32", "198.51.100.1"),
            address("2001:db8:0:5::1/64", "fe80::1"),
            address("192.0.2.5/32", "192.0.2.1", primary=True),
            address("2001:db8:0:6::1/64", "fe80::2"),
        )
    )
    assert [(each["address"], each.get("gateway")) for each in nic["subnets"]] == [
        ("192.0.2.5/32", "192.0.2.1"),
        ("198.51.100.7/32", None),
        ("2001:db8:0:5::1/64", "fe80::1"),
        ("2001:db8:0:6::1/64", None),
    ]
    assert nic["accept-ra"] is False


def test_the_network_is_read_anew_at_every_boot() -> None:
    assert user_data()["updates"] == {"network": {"when": ["boot-new-instance", "boot"]}}


async def test_a_running_guest_that_restarts_by_itself_reads_the_present_seed(tmp_path: Path) -> None:
    """QEMU holds the file open that was there when the guest was started."""
    path = tmp_path / "seed.iso"
    await write_seed(record(spec := machine(one_nic("192.0.2.5/32"))), HASH, path, (0, 0))
    with path.open("rb") as held:
        length = len(held.read())
        later = spec.model_copy(update={"network": one_nic("192.0.2.5/32", "198.51.100.7/32")})
        await write_seed(record(later), None, path, (0, 0))
        held.seek(0)
        content = held.read()
    assert b"198.51.100.7/32" in content
    assert HASH.encode() not in content
    assert len(content) >= length
    assert [entry.name for entry in tmp_path.iterdir()] == ["seed.iso"]


def one_nic(*texts: str) -> NetworkSpec:
    addresses = tuple(address(text, "192.0.2.1") for text in texts)
    return NetworkSpec(nics=(NicSpec(nic_id=uuid4(), mac="52:54:00:00:00:01", addresses=addresses),))


async def test_the_seed_is_a_disk_labelled_cidata_that_only_qemu_reads(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    rendered = record(machine(seeded=seed(keys=("ssh-ed25519 AAAAkey owner",))))
    await write_seed(rendered, HASH, path, (0, 0))
    assert (await run_program("isoinfo", "-d", "-i", path)).find(b"Volume id: cidata") >= 0
    content = await run_program("isoinfo", "-J", "-x", "/user-data", "-i", path)
    assert HASH.encode() in content
    assert b"ssh-ed25519 AAAAkey owner" in content
    assert path.stat().st_mode & 0o777 == 0o400
    assert [entry.name for entry in tmp_path.iterdir()] == ["seed.iso"]


async def test_what_a_killed_agent_left_of_a_seed_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / WORKSHOP).mkdir()
    (tmp_path / WORKSHOP / "user-data").write_text(HASH)
    await write_seed(record(machine(seeded=seed())), None, tmp_path / "seed.iso", (0, 0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["seed.iso"]


async def test_nobody_but_root_can_read_a_seed_while_it_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable: list[str] = []
    put = put_in_place

    def look(temporary: Path, path: Path, *, mode: int, owner: tuple[int, int] | None = None) -> None:
        for file in tmp_path.rglob("*"):
            folders = [folder for folder in file.parents if folder.is_relative_to(tmp_path) and folder != tmp_path]
            if (
                file.is_file()
                and file.stat().st_mode & 0o077
                and not any(folder.stat().st_mode & 0o077 == 0 for folder in folders)
            ):
                readable.append(file.name)
        put(temporary, path, mode=mode, owner=owner)

    monkeypatch.setattr(seeds, "put_in_place", look)

    await write_seed(record(machine(seeded=seed())), HASH, tmp_path / "seed.iso", (0, 0))

    assert readable == []
    assert (tmp_path / "seed.iso").stat().st_mode & 0o777 == 0o400


async def test_the_seed_after_the_first_boot_holds_no_hash_and_the_same_instance(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    rendered = record(machine())
    await write_seed(rendered, HASH, path, (0, 0))
    await write_seed(rendered, None, path, (0, 0))
    assert HASH.encode() not in path.read_bytes()
    assert rendered.seed.instance_id.encode() in path.read_bytes()


SCRIPT = "#!/bin/sh\necho 'grüß dich' >/greeting\n"


async def test_user_data_of_the_owner_is_theirs_to_the_byte_and_ours_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    made = record(machine(seeded=seed(user_data=SCRIPT)))
    await write_seed(made, HASH, path, (0, 0))
    assert await run_program("isoinfo", "-J", "-x", "/user-data", "-i", path) == SCRIPT.encode()
    ours = await run_program("isoinfo", "-J", "-x", "/vendor-data", "-i", path)
    assert ours.startswith(b"#cloud-config\n")
    assert HASH.encode() in ours


def test_user_data_of_the_owner_outlives_the_first_boot_and_the_agent() -> None:
    made = record(machine(seeded=seed(user_data=SCRIPT)))
    again = MachineRecord.model_validate_json(made.stored())
    assert render(again, None)["user-data"] == SCRIPT
    assert "grüß" not in repr(again)


def test_a_record_without_user_data_is_one_that_earlier_agents_read() -> None:
    assert b"user_data" not in record(machine(seeded=seed())).stored()
