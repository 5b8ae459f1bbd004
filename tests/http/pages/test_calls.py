"""What the pages call and read is what the service offers: paths are routes, and members are the API's models'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from svc.controller.catalogue import controller_registry
from svc.registry.openapi import document

SOURCES = Path(__file__).resolve().parents[3] / "http" / "dashboard" / "src"
CALL = re.compile(r"""\bapi\.(get|post|put|patch|delete)(?:<[^(]*>)?\(\s*(["`])(/.*?)\2""")
LISTED = re.compile(r"""(?:\bpath:\s*|\b(?:firstOf|everyOf)(?:<[^(]*>)?\()(["`])(/.*?)\1""")


def calls() -> list[tuple[str, str]]:
    """(method, path) of each call whose path is written out, what is filled in by `{}`."""
    found: set[tuple[str, str]] = set()
    for source in SOURCES.rglob("*.ts"):
        text = source.read_text()
        found |= {(method.upper(), path) for method, _, path in CALL.findall(text)}
        found |= {("GET", path) for _, path in LISTED.findall(text)}
    return sorted((method, re.sub(r"\$\{.*?\}", "{}", path)) for method, path in found)


ROUTES = {
    (operation.route.method.value, re.sub(r"\{.*?\}", "{}", operation.route.path))
    for operation in controller_registry()
}


@pytest.mark.parametrize(("method", "path"), calls(), ids=lambda part: str(part))
def test_a_page_calls_what_there_is(method: str, path: str) -> None:
    assert (method, path) in ROUTES


def test_the_pages_offer_all_that_is_done_to_networks() -> None:
    made = {call for call in calls() if call[0] != "GET"}
    wanted = {
        route
        for route in ROUTES
        if route[0] != "GET"
        and re.search(
            r"^/(networks|pools|security-groups)|/traffic$|ips|/vms/\{\}/(network|security-groups)$", route[1]
        )
    }
    assert wanted
    assert wanted <= made


INTERFACE = re.compile(r"^export interface (\w+)(?: extends ([\w<>, ]+))? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"^  (\w+)\??:", re.MULTILINE)
SCHEMAS = document(controller_registry())["components"]["schemas"]
MODELS = {
    "Allocation": "Allocation",
    "Decision": "TrafficDecision",
    "Machine": "VM",
    "MachineAddress": "MachineAddress",
    "MachineNetworking": "MachineNetworking",
    "MachineTraffic": "VMTraffic",
    "Month": "TrafficMonth",
    "Network": "Network",
    "Nic": "Nic",
    "NodeNetwork": "NodeNetwork",
    "Plan": "Plan",
    "PolicyAnswer": "PlanTrafficResult",
    "Pool": "PoolModel",
    "Reservation": "Reservation",
    "Rule": "SecurityGroupRule",
    "SecurityGroup": "SecurityGroup",
    "TrafficPage": "TrafficPage",
    "TrafficRow": "TrafficUse",
    "Usage": "TrafficPosition",
}
"""An interface of the pages, and the model of the API that it shows."""


def interfaces() -> dict[str, set[str]]:
    """The members of each interface that the pages declare, those of what it extends included."""
    found = {
        name: (re.sub(r"<.*?>", "", bases), set(MEMBER.findall(body)))
        for source in SOURCES.rglob("*.ts")
        for name, bases, body in INTERFACE.findall(source.read_text())
    }

    def members(name: str) -> set[str]:
        bases, own = found[name]
        return own.union(*(members(base) for base in re.findall(r"\w+", bases) if base in found))

    return {name: members(name) for name in found}


@pytest.mark.parametrize(("interface", "model"), MODELS.items())
def test_a_page_reads_what_is_answered(interface: str, model: str) -> None:
    read = interfaces()[interface]
    assert read
    assert read <= set(SCHEMAS[model]["properties"])
