"""What the protocol takes and what it does not."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from svc_nodeagent.protocol import MANY, MOST_TEXT, UP, DomainChanged, Failed, Result

CAPACITY = {
    "cpus": 4,
    "memory_mib": 1024,
    "memory_free_mib": 512,
    "disk_gib": 10.0,
    "disk_free_gib": 5.0,
    "load_1m": 0.1,
}
DOMAIN = {"uuid": str(UUID(int=1)), "name": "web", "vm_id": None, "state": "running", "vcpus": 1, "memory_mib": 256}


def heartbeat(**figures: Any) -> dict[str, Any]:
    return {"frame": "heartbeat", "at": "2026-01-01T00:00:00Z", "capacity": CAPACITY | figures}


def result(**of: Any) -> dict[str, Any]:
    return {"frame": "result", "id": "a", "outcome": {"outcome": "succeeded", "result": of}}


def inventory(**of: Any) -> dict[str, Any]:
    facts = dict.fromkeys(
        ("hostname", "agent_version", "os", "kernel", "libvirt", "hypervisor", "cpu_model"), "simulated"
    ) | {"host_uuid": str(UUID(int=2)), "accelerator": "simulated", "machine_types": [], "network_features": []}
    return result(kind="inventory", facts=facts, capacity=CAPACITY, domains=[DOMAIN | of], images=[])


def inventory_of_volume(**place: Any) -> dict[str, Any]:
    frame = inventory()
    volume = {"volume_id": str(UUID(int=4)), "size_bytes": 1} | place
    frame["outcome"]["result"]["volumes"] = [volume]
    return frame


def part(data: str) -> dict[str, Any]:
    return result(kind="copied_part", volume=1, path="/a", size_bytes=1, modified=0, data=data)


def described(**of: Any) -> dict[str, Any]:
    """A machine as its agent has recorded it, with one address."""
    address = {"gateway": "fe80::1", "on_link": True, "topology": "routed"} | of
    nic = {"nic_id": str(UUID(int=5)), "mac": "52:54:00:00:00:01", "addresses": [address]}
    seed = {"instance_id": "i", "hostname": "web", "account": {"name": "root", "sudo": False}}
    machine = {"vm_id": str(UUID(int=3)), "name": "web", "vcpus": 1, "memory_mib": 1, "network": {"nics": [nic]}}
    machine |= {"disks": [{"index": 0, "size_gib": 1}], "seed": seed | {"ssh_password_login": False}}
    return result(kind="machine", machine=machine | {"image_digest": "0"})


@pytest.mark.parametrize(
    "frame",
    [
        heartbeat(load_1m=float("inf")),
        heartbeat(disk_free_gib=float("nan")),
        heartbeat(memory_free_mib=10**400),
        heartbeat(cpus=-1),
        inventory(vcpus=2**31),
        inventory(memory_mib=2**31),
        result(kind="release", vm_id=str(UUID(int=3)), removed=["not an address"]),
        result(kind="delete", vm_id=str(UUID(int=3)), removed_addresses=["10.0.0.1", ""], retained_disks=[]),
        result(kind="release", vm_id=str(UUID(int=3)), removed=["fe80::1%eth0"]),
        inventory_of_volume(vm_id=str(UUID(int=3)), index=None),
        inventory_of_volume(vm_id=None, index=3),
        part("YQ"),
        part("Y\u00e4=="),
        part("YQ==YQ=="),
        described(interface="2001:db8::5%eth0/128", network="2001:db8::5/128"),
        described(interface="2001:db8::5/128", network="2001:db8::5%eth0/128"),
    ],
)
def test_what_no_record_could_hold_is_no_frame(frame: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UP.validate_json(json.dumps(frame))


@pytest.mark.parametrize(
    "frame",
    [
        heartbeat(),
        inventory(),
        result(kind="release", vm_id=str(UUID(int=3)), removed=["10.0.0.1", "10.0.0.2/32", "fd00::1"]),
        inventory_of_volume(vm_id=str(UUID(int=3)), index=3),
        inventory_of_volume(vm_id=None, index=None),
        described(interface="2001:db8::5/128", network="2001:db8::5/128"),
        *(part(base64.b64encode(bytes(length)).decode()) for length in (0, 1, 2, 3, 1024 * 1024)),
    ],
)
def test_what_a_host_says_is_a_frame(frame: dict[str, Any]) -> None:
    assert UP.validate_json(json.dumps(frame))


@pytest.mark.parametrize(
    "frame",
    [
        {"frame": "result", "id": "x" * 201, "outcome": {"outcome": "failed", "code": "host", "message": ""}},
        {"frame": "renewal", "csr": "x" * 20_000},
        {"frame": "hello", "protocol": 2, "agent_version": "x" * 300, "boot_id": "a"},
        {"frame": "hello", "protocol": 2, "agent_version": "1", "boot_id": "a", "unacknowledged": ["a"] * (MANY + 1)},
        inventory(name="x" * 300),
        result(kind="release", vm_id=str(UUID(int=3)), removed=["10.0.0.1"] * 2_000),
        result(kind="release", vm_id=str(UUID(int=3)), removed=["fe80::1%" + "x" * 1_000]),
    ],
)
def test_what_is_longer_than_any_host_has_reason_to_say_is_no_frame(frame: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UP.validate_json(json.dumps(frame))


def test_a_hosts_sentence_is_cut_to_what_a_record_takes() -> None:
    long = "x" * 3_900_000
    failed = {"outcome": "failed", "code": "host", "message": long, "hint": long}
    changed = {"vm_id": str(UUID(int=3)), "state": "running", "reason": long, "at": "2026-01-01T00:00:00Z"}

    ended = UP.validate_json(json.dumps({"frame": "result", "id": "a", "outcome": failed}))
    change = UP.validate_json(json.dumps({"frame": "domain_changed", **changed}))

    assert isinstance(ended, Result)
    assert isinstance(ended.outcome, Failed)
    assert len(ended.outcome.message) == len(ended.outcome.hint or "") == MOST_TEXT
    assert isinstance(change, DomainChanged)
    assert len(change.reason) == MOST_TEXT
