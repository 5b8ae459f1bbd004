"""The agent's log."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import structlog

from svc_nodeagent.telemetry import configure_logging
from tests.support.logs import plain_logs


def test_a_log_on_a_full_disk_fails_nobody_and_goes_on_with_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(descriptor, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging()
        try:
            for _ in range(200):
                structlog.get_logger("test").warning("journal.not_written", padding="x" * 100)

            space = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(space, descriptor)
            os.close(space)
            structlog.get_logger("test").info("after")
        finally:
            plain_logs()

    assert json.loads(log.read_text().splitlines()[-1])["event"] == "after"
