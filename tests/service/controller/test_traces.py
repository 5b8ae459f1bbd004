"""Traces as an operator's collector receives them, of a controller and an agent that speak as they always do."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from svc.cli.failures import Exit
from svc.controller.config import ControllerConfig
from svc.service.controller.compose import open_controller
from svc_nodeagent.simulated import Behaviour
from svc_nodeagent.simulated_fleet import Fleet
from tests.cli.conftest import SEEN, House, Terminal, opened_house
from tests.service.controller.test_monitoring import scrape, value
from tests.support.collector import collector
from tests.support.configuration import local_config
from tests.support.logs import lines_of, service_log
from tests.support.stack import free_port

CALLER_TRACE, CALLER_SPAN = "5b8aa5a2d2c872e8321cf37308d69df2", "051581bf3cb55c13"
NOT_SAMPLED = f"00-{CALLER_TRACE}-{CALLER_SPAN}-00"
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


def config_for(folder: Path, endpoint: str, ratio: float = 1.0) -> ControllerConfig:
    return local_config(folder / "controller", otlp_endpoint=endpoint, trace_ratio=ratio)


@asynccontextmanager
async def traced(config: ControllerConfig, url: str, folder: Path, **environ: str) -> AsyncIterator[House]:
    given = {"SVC_DATABASE_URL": url} | SOON | environ
    with trio.fail_after(90):
        async with opened_house(config, given, folder, SEEN) as house:
            yield house


async def order(house: House, name: str, **headers: str) -> dict[str, Any]:
    """Order a machine; the answer."""
    async with Client.open(house.profile) as client:
        [project] = (await client.call("GET", "/projects"))["items"]
        wanted = {"name": name, "image": "tiny", "project_id": project["id"], "password": True}
        size = {"vcpus": 1, "memory_mib": 128, "disk_gib": 1}
        answer: dict[str, Any] = await client.call("POST", "/vms", body=wanted | size, headers=headers)
        return answer


async def until_begun(house: House) -> None:
    """The node has been asked for what was ordered, and is at work."""
    async with Client.open(house.profile) as client:
        with trio.fail_after(60):
            while not (await client.call("GET", "/tasks", query={"status": "running"}))["items"]:
                await trio.sleep(0.02)


async def test_a_creation_is_one_trace_from_the_request_to_the_call_of_the_host(
    database_url: str, tmp_path: Path
) -> None:
    log = io.StringIO()
    with collector() as heard, service_log(log):
        async with traced(config_for(tmp_path, heard.url), database_url, tmp_path) as house:
            await house.node()
            await house.image()

            answer = await order(house, "web-of-a-customer", traceparent=NOT_SAMPLED)
            call = await heard.one("simulated vm.create")
            task = await heard.one("task vm.create", svc__task__status="succeeded")
            request = await heard.one("POST /api/v1/vms")
            await heard.one("node vm.create")

    assert heard.ancestors(call) == [
        "simulated vm.create",
        "node vm.create",
        "task vm.create",
        "transaction",
        "vm.create",
        "POST /api/v1/vms",
    ]
    assert {call.trace, task.trace, request.trace} == {CALLER_TRACE}
    assert request.parent == CALLER_SPAN
    expected = {
        "http.request.method": "POST",
        "http.route": "/api/v1/vms",
        "http.response.status_code": 201,
        "url.path": "/api/v1/vms",
        "url.scheme": "https",
        "server.address": "127.0.0.1",
    }
    assert expected.items() <= request.attributes.items()
    assert task.attributes["svc.task.id"] == answer["task"]["id"]
    assert task.attributes["svc.vm.id"] == answer["vm"]["id"]
    assert task.attributes["svc.task.resumed"] is False
    assert request.service == "svc-controller"
    # The actor that wrote the end worked for the task.
    assert any(span.parent == task.id for span in heard.named("transaction"))
    of_request = {line["event"]: line for line in lines_of(log.getvalue()) if line.get("trace_id") == CALLER_TRACE}
    assert {"request.answered", "task.ended"} <= of_request.keys()


async def test_spans_hold_ids_and_nothing_of_what_customers_wrote(database_url: str, tmp_path: Path) -> None:
    with collector() as heard:
        async with traced(config_for(tmp_path, heard.url), database_url, tmp_path) as house:
            await house.node()
            await house.image()
            answer = await order(house, "web-of-a-customer")
            await heard.one("task vm.create", svc__task__status="succeeded")
            missing = await house.svc("vm", "show", "00000000-0000-4000-8000-000000000000")
            refused = await heard.one("vm.show", svc__vm__id="00000000-0000-4000-8000-000000000000")

    assert missing.code != 0
    assert refused.failed
    assert refused.attributes["error.type"] == "not_found"
    told = " ".join(f"{span.name} {span.attributes}" for span in heard.spans)
    token = house.profile.token or "none"
    for private in (
        "web-of-a-customer",
        "ada@example.test",
        answer["password"],
        answer["vm"]["addresses"][0]["ip"],
    ):
        assert private not in told
    assert token not in told


async def test_a_task_that_is_resumed_after_a_restart_goes_on_with_its_trace(database_url: str, tmp_path: Path) -> None:
    environ = {"SVC_DATABASE_URL": database_url} | SOON
    with collector() as heard:
        config = config_for(tmp_path, heard.url)
        async with traced(config, database_url, tmp_path) as house:
            await house.node(Behaviour(pull_seconds=(600.0, 600.0)))
            await house.image()
            await order(house, "web-1", traceparent=NOT_SAMPLED)
            made_in = await heard.one("vm.create")
            await until_begun(house)
        first = await heard.one("task vm.create", svc__task__resumed=False)
        fleet = Fleet(house.nodes, 1)
        async with open_controller(config, environ, ["node watch"]), trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            resumed = await heard.one("task vm.create", svc__task__resumed=True)
            call = await heard.one("simulated vm.create")
            nursery.cancel_scope.cancel()

    assert "svc.task.status" not in first.attributes
    assert resumed.attributes["svc.task.status"] == "succeeded"
    assert (resumed.trace, resumed.parent) == (first.trace, first.parent)
    assert resumed.trace == made_in.trace == CALLER_TRACE
    assert heard.ancestors(call)[2:] == ["task vm.create", "transaction", "vm.create", "POST /api/v1/vms"]


async def test_a_collector_that_hangs_delays_nobody_and_what_is_lost_is_counted(
    database_url: str, tmp_path: Path
) -> None:
    small = {"OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10"}
    with collector() as heard:
        heard.answering.clear()
        async with traced(config_for(tmp_path, heard.url), database_url, tmp_path, **small) as house:
            async with Client.open(house.profile) as client:
                with trio.fail_after(60):  # A call that waited for the collector would take ten seconds.
                    for _ in range(30):
                        await client.call("GET", "/vms")
            figures = await scrape(house)
            began = trio.current_time()
        took = trio.current_time() - began
        arrived = list(heard.spans)

    assert arrived == []
    assert value(figures, 'svc_trace_spans_dropped_total{reason="queue_full"}') > 0
    assert value(figures, "svc_trace_spans_exported_total") == 0
    assert took < 20  # Stopping gives the collector three seconds of them.


async def test_a_collector_that_was_away_is_told_of_once_and_gets_what_comes_after(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    port = free_port()
    log = io.StringIO()
    with service_log(log):
        async with traced(config_for(tmp_path, f"http://127.0.0.1:{port}"), database_url, tmp_path) as house:
            with trio.fail_after(30):
                while value(await scrape(house), 'svc_trace_spans_dropped_total{reason="not_taken"}') == 0:
                    await house.ok("vm", "list")
            with collector(port) as heard:
                await house.ok("vm", "list")
                await heard.one("GET /api/v1/vms")

    events = [line["event"] for line in lines_of(log.getvalue()) if str(line["event"]).startswith("traces.")]
    assert events[:2] == ["traces.not_taken", "traces.taken_again"]


async def test_of_traces_that_are_not_kept_nothing_is_sent(database_url: str, tmp_path: Path) -> None:
    with collector() as heard:
        async with traced(config_for(tmp_path, heard.url, ratio=1e-9), database_url, tmp_path) as house:
            await house.node()
            await house.image()
            await house.machine("web-1", "--password", "--wait")
            figures = await scrape(house)

    assert heard.spans == []
    assert value(figures, 'svc_trace_spans_dropped_total{reason="queue_full"}') == 0


async def test_settings_of_the_exporter_that_cannot_be_are_told_in_a_line(
    terminal: Terminal, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process logs in one way from its beginning to its end: loggers keep what they were configured with first.
    monkeypatch.setattr("svc_http.logs.configure", lambda: None)

    ended = await terminal.svc(
        *("serve", "controller", "--data", str(tmp_path / "controller"), "--otlp-endpoint", "http://127.0.0.1:9"),
        SVC_DATABASE_URL=database_url,
        OTEL_BSP_MAX_QUEUE_SIZE="many",
    )

    assert ended.code == Exit.INVALID
    assert "The OTEL_BSP_ variables of the environment are invalid" in ended.err
    assert "Traceback" not in ended.err


def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys, svc.cli.serve, svc.service.controller.compose; "
        "print([n for n in sys.modules if n.startswith('opentelemetry')])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"
