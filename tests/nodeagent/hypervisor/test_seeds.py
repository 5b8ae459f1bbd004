"""The seed: what cloud-init is told, and what the host must not keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.seeds import WORKSHOP, render, write_seed
from tests.nodeagent.hypervisor.builders import GATEWAY, machine, network, record, seed

HASH = "$6$rounds=5000$saltsalt$" + "x" * 86


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


def test_every_card_is_found_by_its_mac_and_only_the_first_leads_outside() -> None:
    spec = machine(network("10.213.0.2", "10.213.0.3"))
    config = json.loads(render(record(spec), None)["network-config"])
    first, second = config["ethernets"]["eth0"], config["ethernets"]["eth1"]
    assert [card["match"]["macaddress"] for card in (first, second)] == [nic.mac for nic in spec.network.nics]
    assert first["addresses"] == ["10.213.0.2/32"]
    assert first["routes"] == [{"to": "0.0.0.0/0", "via": GATEWAY, "on-link": True}]
    assert second["routes"] == []


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


async def test_the_seed_after_the_first_boot_holds_no_hash_and_the_same_instance(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    rendered = record(machine())
    await write_seed(rendered, HASH, path, (0, 0))
    await write_seed(rendered, None, path, (0, 0))
    assert HASH.encode() not in path.read_bytes()
    assert rendered.seed.instance_id.encode() in path.read_bytes()
