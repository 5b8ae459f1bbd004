"""What the program of simulated nodes is told, and by which way."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from svc_nodeagent import simulated_cli
from svc_nodeagent.simulated_fleet import Fleet


def test_a_token_is_no_argument_that_everybody_on_the_computer_could_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate-nodes", "1", "--token", "svcvm_secret"])

    with pytest.raises(SystemExit):
        simulated_cli.parse()

    assert "--token" in capsys.readouterr().err


async def test_every_fiftieth_node_that_joins_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def enrol(client: httpx.AsyncClient, joined: Callable[[str], None]) -> None:
        for number in range(120):
            joined(f"node-{number}")

    new = SimpleNamespace(enrolment=tmp_path / "enrolment.json")
    fleet = SimpleNamespace(names=lambda: ["node-0"], folder_of=lambda name: new, enrol=enrol)
    monkeypatch.setenv("SVC_TOKEN", "svcvm_secret")

    await simulated_cli.enrol(cast(Fleet, fleet), Namespace(ca=None, controller="https://controller.test"))

    assert capsys.readouterr().out.splitlines() == ["50 nodes joined", "100 nodes joined"]
