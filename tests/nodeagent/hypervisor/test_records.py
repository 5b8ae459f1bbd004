"""Records of machines that an agent finds in its folder."""

from __future__ import annotations

import json
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.protocol import Topology

SEED = {
    "instance_id": "i",
    "hostname": "web",
    "account": {"name": "root", "sudo": False, "password_hash": None, "ssh_keys": []},
    "ssh_password_login": False,
}


def record(nic: dict[str, Any]) -> dict[str, Any]:
    return {
        "vm_id": str(uuid4()),
        "name": "web",
        "vcpus": 1,
        "memory_mib": 256,
        "disks": [{"index": 0, "size_gib": 1}],
        "base": "sha256-0.qcow2",
        "network": {"nics": [{"nic_id": str(uuid4()), "mac": "52:54:00:00:00:01", "mtu": 1500, **nic}]},
        "seed": SEED,
    }


def test_a_record_of_the_first_version_keeps_its_network(tmp_path: Path) -> None:
    address = {"interface": "10.77.0.2/24", "gateway": "10.77.0.1", "on_link": True, "primary": True}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(record({"topology": "nat", "addresses": [address], "rate_mbps": None})))
    [nic] = read_record(path).network.nics
    [found] = nic.addresses
    assert found.interface == IPv4Interface("10.77.0.2/24")
    assert found.network == IPv4Network("10.77.0.2/32")
    assert found.topology is Topology.NAT
    assert read_record(path) == read_record(path).model_validate_json(read_record(path).model_dump_json())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"network": {"nics": 1}}'])
def test_what_is_no_record_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"machine\.json is not a machine record"):
        read_record(path)
