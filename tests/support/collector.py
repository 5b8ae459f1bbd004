"""A collector of traces as the controller meets it: OTLP over HTTP, decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span, with its ids in hexadecimal; `parent` is empty for a root."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str | int | bool]
    failed: bool
    seconds: float
    service: str


@dataclass
class Collector:
    url: str
    spans: list[Seen] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)
    """While it is not set, whoever sends spans hears nothing."""

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    async def one(self, name: str, **attributes: str | int | bool) -> Seen:
        """The span of that name and with these attributes (dots as double underscores), once it has come."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        with trio.fail_after(30):
            while True:
                for span in self.named(name):
                    if wanted.items() <= span.attributes.items():
                        return span
                await trio.sleep(0.02)  # it comes with the controller's next batch; nothing is asserted by the pause

    def ancestors(self, span: Seen) -> list[str]:
        """The names from the span itself up to the root."""
        by_id = {each.id: each for each in self.spans}
        names = [span.name]
        while span.parent in by_id:
            span = by_id[span.parent]
            names.append(span.name)
        return names


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.answering.wait(60)
            ok = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if ok:
                heard.spans += _decoded(body)
            self.send_response(200 if ok else 400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Its requests are no matter for the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    heard = Collector(f"http://127.0.0.1:{server.server_port}")
    heard.answering.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield heard
    finally:
        heard.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _decoded(body: bytes) -> list[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for resource in request.resource_spans:
        [service] = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                told = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
                seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                failed = span.status.code == span.status.STATUS_CODE_ERROR
                found.append(Seen(span.name, *ids, told, failed, seconds, service))
    return found
