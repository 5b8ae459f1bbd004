"""What an operator's Prometheus and Grafana ask of a controller is there, documented, and means what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
import trio

from tests.cli.conftest import House

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "tools/monitoring"
PROMTOOL = ROOT / "build/promtool"
NAME = re.compile(r"\bsvc_[a-z_]+")
ELSEWHERE = {
    "svc_garbage_longest_pause_seconds",
    "svc_database_disk_size_bytes",
    "svc_database_disk_free_bytes",
    "svc_database_disk_reserve_bytes",
    "svc_database_disk_full",
    "svc_trace_spans_exported_total",
    "svc_trace_spans_dropped_total",
}
"""Figures of a process of its own, of the embedded database and of traces: this controller has none of these."""


async def scrape(house: House) -> str:
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{house.operations_url}/metrics")
    assert answer.status_code == 200
    return answer.text


def value(figures: str, sample: str) -> float:
    [found] = re.findall(rf"^{re.escape(sample)} (\S+)$", figures, re.MULTILINE)
    return float(found)


def families(figures: str) -> set[str]:
    """Names as they are documented: a histogram by its own."""
    return {line.split()[2] for line in figures.splitlines() if line.startswith("# TYPE svc_")} - created(figures)


def created(figures: str) -> set[str]:
    """When a series began: the client library's own doing."""
    return {line.split()[2] for line in figures.splitlines() if re.match(r"# TYPE svc_\w+_created ", line)}


def wanted(text: str) -> set[str]:
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in NAME.findall(text)}


async def test_every_figure_is_documented_and_drawn_and_none_else_is_asked_for(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")

    shown = families(await scrape(house))

    documented = wanted((ROOT / "docs/monitoring.md").read_text())
    assert documented == shown | ELSEWHERE
    assert wanted((MONITORING / "alerts.yml").read_text()) <= documented
    drawn = wanted((MONITORING / "dashboard.json").read_text())
    assert drawn == documented - {"svc_database_disk_full"}


async def test_the_fleet_is_told_as_lists_show_it(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")

    figures = await scrape(house)

    assert value(figures, 'svc_nodes{state="online"}') == 1
    assert value(figures, "svc_nodes_connected") == 1
    assert value(figures, 'svc_machines{status="running"}') == 1
    assert value(figures, 'svc_alerts_open{severity="critical"}') == 0
    assert value(figures, 'svc_tasks_ended_total{status="succeeded"}') >= 1
    assert value(figures, "svc_database_up") == 1
    [pool] = json.loads((await house.ok("pool", "list", "--output", "json")).out)["items"]
    names = f'{{network="{pool["network_name"]}",pool="{pool["name"]}"}}'
    assert value(figures, f"svc_pool_addresses_free{names}") == pool["free_count"]


async def test_the_figures_keep_prometheus_conventions(house: House) -> None:
    figures = await scrape(house)

    checked = await trio.run_process(
        [PROMTOOL, "check", "metrics"], stdin=figures.encode(), capture_stdout=True, capture_stderr=True, check=False
    )

    complaints = checked.stderr.decode().splitlines()
    assert [line for line in complaints if line.startswith(("svc_", "error"))] == []


@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_the_rules_are_well_formed_and_call_somebody_when_they_should(command: tuple[str, ...]) -> None:
    ran = subprocess.run([PROMTOOL, *command], cwd=MONITORING, text=True, capture_output=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_says_what_to_do() -> None:
    rules = set(re.findall(r"alert: (\w+)", (MONITORING / "alerts.yml").read_text()))

    explained = set(re.findall(r"`(Svc\w+)`", (ROOT / "docs/monitoring.md").read_text()))

    assert rules == explained
