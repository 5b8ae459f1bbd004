"""What a node's operation adds to a trace, by agents of both versions and over lost connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.spans import ExportSettings, SdkTracer, SpanQueue
from svc_actors.store import Database
from svc_actors.tracing import Kind, Origin, working_for
from svc_nodeagent.protocol import PROTOCOL_VERSION, OperationId, Versions, VmStart
from tests.support.gateway import BRISK, create, open_rig, until

WITHOUT_CALLS = 3
"""The last version of the protocol that has none."""


class Traced:
    """Spans of the last request."""

    def __init__(self) -> None:
        self.spans: tuple[ReadableSpan, ...] = ()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """A block that is a sampled request."""
        exporter = InMemorySpanExporter()
        queue = SpanQueue(exporter, ExportSettings())
        span = SdkTracer(queue, service="test", ratio=1.0, environ={}).start("request", Kind.SERVER, {}, caller=None)
        with working_for(Origin("order-1", span)):
            yield
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run)
            nursery.cancel_scope.cancel()
        self.spans = exporter.get_finished_spans()

    def tree(self) -> dict[str, str | None]:
        """The name of each span's parent by its own."""
        names = {span.context.span_id: span.name for span in self.spans if span.context}
        return {span.name: names[span.parent.span_id] if span.parent else None for span in self.spans}


@pytest.mark.parametrize(
    ("agent", "calls"), [(PROTOCOL_VERSION, {"simulated vm.create": "node vm.create"}), (WITHOUT_CALLS, {})]
)
async def test_agents_tell_their_calls_of_the_host_and_older_ones_work_without(
    database: Database, tmp_path: Path, agent: int, calls: dict[str, str]
) -> None:
    traced = Traced()
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()
        await rig.stop_gateway()
        await rig.start_gateway(Versions(WITHOUT_CALLS, PROTOCOL_VERSION))
        async with node.running(BRISK, Versions(agent, agent)):
            await rig.until_online(node.node_id)

            async with traced.request():
                await rig.gateway.perform(node.node_id, OperationId(f"{uuid4()}:a"), create(), timeout=10)

    assert traced.tree() == {"request": None, "node vm.create": "request", **calls}


async def test_a_call_that_failed_says_why_in_a_word(database: Database, tmp_path: Path) -> None:
    traced = Traced()
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()
        async with node.running():
            await rig.until_online(node.node_id)

            async with traced.request():
                start = VmStart(vm_id=uuid4(), network=create().machine.network)
                with pytest.raises(OperationFailed):
                    await rig.gateway.perform(node.node_id, OperationId("start"), start, timeout=10)

    failed = {span.name: dict(span.attributes or {}).get("error.type") for span in traced.spans}
    assert failed == {"simulated vm.start": "not_found", "node vm.start": "not_found", "request": None}


async def test_calls_are_told_with_the_outcome_on_the_connection_that_comes_after(
    database: Database, tmp_path: Path
) -> None:
    traced = Traced()
    async with open_rig(database, tmp_path) as rig:
        node = await rig.new_node()
        async with node.running():
            await rig.until_online(node.node_id)
            async with traced.request(), trio.open_nursery() as nursery:
                operation = create()
                nursery.start_soon(lambda: rig.gateway.perform(node.node_id, OperationId("a"), operation, timeout=30))
                await until(lambda: node.host.performed)
                await rig.stop_gateway()
                await rig.start_gateway()
                nursery.cancel_scope.cancel()
            await rig.until_online(node.node_id)

            async with traced.request():
                await rig.gateway.perform(node.node_id, OperationId("a"), operation, timeout=30)

    assert [type(each).__name__ for each in node.host.performed] == ["VmCreate"]
    assert traced.tree()["simulated vm.create"] == "node vm.create"
