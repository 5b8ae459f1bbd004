"""What the pages call is what the service offers. What they read of an answer is checked when they are built."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from svc.controller.catalogue import controller_registry
from svc.panel.catalogue import panel_registry
from svc.registry.operation import Operation

SOURCES = Path(__file__).resolve().parents[3] / "http" / "dashboard" / "src"
CALL = re.compile(r"""\bapi\.(get|post|put|patch|delete)(?:File)?(?:<[^(]*>)?\(\s*(["`])(/.*?)\2""")
LISTED = re.compile(r"""(?:\bpath:\s*|\b(?:firstOf|everyOf)(?:<[^(]*>)?\()(["`])(/.*?)\1""")


def calls(folder: str) -> set[tuple[str, str]]:
    """(method, path) of each call whose path is written out, what is filled in by `{}`, without a query."""
    found: set[tuple[str, str]] = set()
    for source in (SOURCES / folder).rglob("*.ts"):
        text = source.read_text()
        found |= {(method.upper(), path) for method, _, path in CALL.findall(text)}
        found |= {("GET", path) for _, path in LISTED.findall(text)}
    return {(method, re.sub(r"\$\{.*?\}", "{}", path).partition("?")[0]) for method, path in found}


def routes(operations: Iterable[Operation[Any, Any, Any]]) -> set[tuple[str, str]]:
    return {(operation.route.method.value, re.sub(r"\{.*?\}", "{}", operation.route.path)) for operation in operations}


ROUTES = routes(controller_registry())
OFFERED = {"controller": ROUTES, "panel": routes(panel_registry())}
"""By the folder of the pages of each service."""


@pytest.mark.parametrize("service", OFFERED)
def test_a_page_calls_what_there_is(service: str) -> None:
    called = calls(service)

    assert called
    assert called <= OFFERED[service]


def test_what_both_services_pages_share_calls_what_both_have() -> None:
    called = calls("shared")
    # A panel's first administrator is made on the command line, and links that sign in are the panel's alone.
    of_one = {("POST", "/setup"), ("POST", "/auth/link")}
    assert called - of_one <= OFFERED["controller"] & OFFERED["panel"]
    assert of_one <= called


def test_the_pages_offer_all_that_is_done_to_networks() -> None:
    made = {call for call in calls("controller") if call[0] != "GET"}
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
