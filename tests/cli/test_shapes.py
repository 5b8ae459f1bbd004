"""Answers that are more than a row are shown so that a person can read them, and untouched to a program."""

from __future__ import annotations

from typing import Any

import pytest

from svc.cli.output import Style, show
from svc.cli.shapes import rule_line, shaped, shortened

MONTH = {
    "period": "2026-11",
    "received_bytes": 3 << 30,
    "sent_bytes": 1 << 20,
    "resets": 1,
    "samples": 900,
    "first_at": "2026-11-01T00:01:00Z",
}
RULE: dict[str, Any] = {
    "id": "0b7c8a52-4f0e-4b0f-9d4a-5a3f1f9c0d11",
    "direction": "ingress",
    "action": "accept",
    "protocol": "tcp",
    "family": None,
    "port_from": 22,
    "port_to": 22,
    "cidr": None,
    "icmp_type": None,
    "note": "",
}


def address(ip: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "ip": ip,
        "family": 4,
        "interface": f"{ip}/32",
        "network": f"{ip}/32",
        "gateway": "192.0.2.1",
        "topology": "routed",
        "pool_id": None,
        "pool_name": None,
        "state": "allocated",
        "primary": False,
        "changed_at": "2026-11-01T00:00:00Z",
    }
    return plain | changes


def networking(**changes: Any) -> dict[str, Any]:
    addresses = [address("192.0.2.5", primary=True), address("192.0.2.6", state="releasing")]
    nic = {"id": "n", "mac": "52:54:00:00:00:01", "network_id": "n", "network_name": "public", "mtu": 1500}
    plain: dict[str, Any] = {
        "vm_id": "v",
        "nics": [nic | {"addresses": addresses}],
        "groups": [{"id": "g", "name": "web"}],
        "rate_mbps": None,
        "effective_rate_mbps": None,
        "isolated": False,
        "isolated_reason": None,
        "ipv4_allowed": 2,
        "ipv4_count": 1,
        "month": MONTH,
        "status": "applied",
        "error": None,
    }
    return plain | changes


def printed(capsys: pytest.CaptureFixture[str], answer: Any) -> list[str]:
    show(shaped(answer), Style())
    return capsys.readouterr().out.splitlines()


def test_a_machines_network_is_told_address_by_address(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, networking())
    assert "192.0.2.5/32 via 192.0.2.1 (routed, primary)" in lines[-2]
    assert "192.0.2.6/32 via 192.0.2.1 (routed, releasing since " in lines[-1]
    told = "\n".join(lines)
    assert "web" in told
    assert "1 of 2" in told
    assert "3 GiB received, 1 MiB sent" in told
    assert "cut off" not in told


def test_what_holds_a_machine_back_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    held = networking(
        isolated=True,
        isolated_reason="The allowance of 2026-11 is used up.",
        rate_mbps=100,
        effective_rate_mbps=10,
        status="failed",
        error="The node lacks vlan.",
        groups=[],
    )
    told = "\n".join(printed(capsys, held))
    for words in (
        "The allowance of 2026-11 is used up.",
        "10 Mbit/s, throttled from 100",
        "The node lacks vlan.",
        "not",
    ):
        assert words in told


def test_an_order_on_a_network_is_answered_by_how_the_network_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert shortened({"address": address("192.0.2.7"), "networking": networking()}) == shaped(networking())


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "ingress accept tcp 22 from anybody"),
        ({"port_to": 90, "note": "web"}, "ingress accept tcp 22 to 90 from anybody (web)"),
        ({"direction": "egress", "action": "drop", "protocol": "any", "port_from": None, "port_to": None, "family": 4,
          "cidr": "192.0.2.0/24"}, "egress drop any to 192.0.2.0/24"),
        ({"protocol": "icmp", "family": 6, "port_from": None, "port_to": None, "icmp_type": 128},
         "ingress accept icmp IPv6 type 128 from anybody"),
    ],
)  # fmt: skip
def test_a_rule_reads_as_a_sentence(changes: dict[str, Any], line: str) -> None:
    assert rule_line(RULE | changes) == line


def test_a_group_shows_the_ids_by_which_its_rules_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    group = {
        "id": "g",
        "name": "web",
        "description": "",
        "project_id": None,
        "project_name": None,
        "default_ingress": "drop",
        "default_egress": "accept",
        "machine_count": 1,
        "machines": [{"id": "v", "name": "web-1"}],
        "rules": [RULE],
        "created_at": "2026-11-01T00:00:00Z",
    }
    told = "\n".join(printed(capsys, group))
    assert f"{RULE['id']}  ingress accept tcp 22 from anybody" in told
    assert "web-1" in told


def test_traffic_says_what_is_used_and_that_it_is_a_floor(capsys: pytest.CaptureFixture[str]) -> None:
    position = {
        "counted_bytes": 5 << 30,
        "allowance_bytes": 10 << 30,
        "percent": 50.0,
        "direction": "outbound",
        "action": "throttle",
        "throttle_mbps": 10,
        "state": "within",
        "resets": 2,
        "samples": 900,
        "first_at": None,
    }
    answer = {"vm_id": "v", "period": "2026-11", "position": position, "history": [], "months": [MONTH]}
    told = "\n".join(printed(capsys, answer))
    assert "5 GiB of 10 GiB, 50.0% (outbound)" in told
    assert "throttle to 10 Mbit/s" in told
    assert "readings 900, counters restarted 2 times" in told
    unlimited = answer | {"position": position | {"allowance_bytes": None, "percent": None, "action": None}}
    assert "past it" not in "\n".join(printed(capsys, unlimited))


def test_a_node_tells_where_it_differs_and_what_it_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    tap = {"device": "svc0", "vm_id": "v", "vm_name": "web-1", "up": False, "rate_mbps": None}
    answer = {
        "probed_at": "2026-11-01T00:00:00Z",
        "agrees": False,
        "differences": [{"vm_id": "v", "vm_name": "web-1", "problem": "The tap is down."}],
        "taps": [tap | {"dropped": {"mac": 3, "arp": 0}}],
    }
    told = "\n".join(printed(capsys, answer))
    assert "web-1: The tap is down." in told
    assert "svc0 web-1, down: 3 mac dropped" in told
