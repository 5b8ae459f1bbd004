"""What the program of simulated nodes is told, and by which way."""

from __future__ import annotations

import pytest

from svc_nodeagent import simulated_cli


def test_a_token_is_no_argument_that_everybody_on_the_computer_could_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate-nodes", "1", "--token", "svcvm_secret"])

    with pytest.raises(SystemExit):
        simulated_cli.parse()

    assert "--token" in capsys.readouterr().err
