"""What the pages call is what the service offers. What they read of an answer is checked when they are built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from svc.controller.catalogue import controller_registry

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
