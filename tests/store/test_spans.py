"""Spans: which are kept, what of a caller's is believed, and what becomes of them without a collector."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from svc_actors.spans import Drop, ExportSettings, SdkTracer, SpanQueue
from svc_actors.store import Database
from svc_actors.tracing import ORIGIN, Kind, Origin, current_span, in_span, working_for


def tracer(ratio: float = 1.0) -> SdkTracer:
    queue = SpanQueue(InMemorySpanExporter(), ExportSettings())
    return SdkTracer(queue, service="test", ratio=ratio, environ={})


def parent(sampled: bool) -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-0{int(sampled)}"


@pytest.mark.parametrize("caller_samples", [True, False])
def test_a_part_of_the_traces_is_kept_whatever_callers_ask_for(caller_samples: bool) -> None:
    its = tracer(0.25)

    began = [its.start("a", Kind.SERVER, {}, caller=parent(caller_samples)) for _ in range(1000)]

    kept = sum(span.sampled for span in began)

    assert 180 < kept < 320


@pytest.mark.parametrize("decided", [True, False])
def test_what_was_decided_when_a_trace_began_holds_for_what_is_resumed(decided: bool) -> None:
    given = parent(decided)

    resumed = tracer(0.0 if decided else 1.0).resume("task", Kind.INTERNAL, {}, parent=given)

    assert resumed.sampled is decided
    assert resumed.trace_id == given[3:35]


@pytest.mark.parametrize("header", [None, "", "nonsense", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'A' * 31}-1-01"])
def test_a_malformed_parent_begins_a_trace_of_its_own(header: str | None) -> None:
    span = tracer().start("a", Kind.SERVER, {}, caller=header)

    assert span.sampled
    assert len(span.trace_id) == 32
    assert set(span.trace_id) != {"0"}


async def test_a_transaction_is_one_span_and_a_statement_alone_another_without_its_arguments(
    database: Database,
) -> None:
    exporter = InMemorySpanExporter()
    queue = SpanQueue(exporter, ExportSettings(period=0.01))
    root = SdkTracer(queue, service="test", ratio=1.0, environ={}).start("root", Kind.SERVER, {}, caller=None)

    with working_for(Origin("r", root)):
        async with database.transaction() as tx:
            await tx.fetchval("SELECT $1::text", "private")
            await tx.fetchval("SELECT 2")
        await database.fetchval("SELECT\n   $1::text", "private")
        with pytest.raises(ZeroDivisionError):
            async with database.transaction():
                raise ZeroDivisionError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        nursery.cancel_scope.cancel()

    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["transaction", "SELECT", "transaction", "root"]
    assert {span.context.trace_id for span in spans if span.context} == {int(root.trace_id, 16)}
    assert dict(spans[1].attributes or {})["db.query.text"] == "SELECT $1::text"
    assert dict(spans[2].attributes or {})["error.type"] == "ZeroDivisionError"
    assert "private" not in str([span.to_json() for span in spans])
    assert ORIGIN.get() is None


def test_where_nothing_is_traced_a_span_is_none() -> None:
    with working_for(Origin("r")), in_span("a", Kind.INTERNAL, {}) as span:
        assert span is None
        assert current_span() is None


class Broken(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("a defect of the exporter")


async def test_a_defect_of_the_exporter_costs_spans_and_nothing_else() -> None:
    queue = SpanQueue(Broken(), ExportSettings(queue=4, batch=2, period=0.01))
    begins = SdkTracer(queue, service="test", ratio=1.0, environ={})

    for _ in range(6):
        begins.start("a", Kind.SERVER, {}, caller=None).end()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.run)
        with trio.fail_after(60):
            while queue.dropped[Drop.NOT_TAKEN] < 4:
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()

    assert queue.dropped == {Drop.QUEUE_FULL: 2, Drop.NOT_TAKEN: 4}
    assert queue.exported == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"OTEL_BSP_MAX_QUEUE_SIZE": "many"},
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4096"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        ExportSettings.of(wrong)
