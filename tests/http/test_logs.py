"""What is logged, and what never is."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import httpx
import pytest
import structlog

from svc_http.logs import configure
from tests.support.logs import plain_logs


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with logging_to(stream):
        yield stream


@contextmanager
def logging_to(stream: TextIO) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure(stream=stream)
    yield
    plain_logs()
    root.handlers, root.level = handlers, level


def lines(output: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_secrets_do_not_reach_the_log_by_name_by_shape_or_in_a_traceback(output: io.StringIO) -> None:
    token = "svcvm_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
    ticket = "GET /api/v1/console/ws/Zm9vYmFyYmF6cXV1eA"
    of_panel = "svc_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
    signing = "whsec_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
    log = structlog.get_logger("test")
    log.info("told", password="hunter2", nested={"secret": "hunter2"}, header=f"Bearer {token}", path=ticket)
    log.info("told", header=f"Bearer {of_panel}", error=f"signed with {signing} in svc_http_connections")
    try:
        raise RuntimeError(f"failed with {token}")
    except RuntimeError:
        log.exception("broken")
        logging.getLogger("library").exception("broken %s", token)
    written = output.getvalue()
    assert len(lines(output)) == 4
    for secret in ("hunter2", token, token[12:], "Zm9vYmFy", of_panel, signing):
        assert secret not in written
    assert "svc_http_connections" in written
    assert "RuntimeError" in written


async def test_a_request_is_logged_by_operation_and_not_by_path(output: io.StringIO, toys: httpx.AsyncClient) -> None:
    await toys.get("/toys/a-very-private-name", headers={"Authorization": "Bearer customer,read"})
    await toys.get("/nowhere/a-very-private-name")
    entries = [line for line in lines(output) if line["event"] == "request.answered"]
    assert [(entry["operation"], entry["status"]) for entry in entries] == [("toy.show", 200), ("unmatched", 404)]
    assert entries[0]["actor"] == "ada@example.org"
    assert all(entry["request_id"] for entry in entries)
    assert "private-name" not in output.getvalue()


def test_a_log_on_a_full_disk_fails_nobody_and_says_afterwards_that_lines_are_missing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(descriptor, "w") as stream, logging_to(stream):
        for number in range(200):
            structlog.get_logger("test").warning("loop.failed", number=number, padding="x" * 100)
        logging.getLogger("library").warning("from a library")

        space = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(space, descriptor)
        os.close(space)
        structlog.get_logger("test").info("after")

    after, lost = [json.loads(line) for line in log.read_text().splitlines()[-2:]]
    assert (lost["event"], lost["level"], lost["lines"]) == ("log.lines_lost", "warning", 201)
    assert after["event"] == "after"
