"""The controller's settings of a certificate by ACME, with an authority that nobody reaches."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio

from svc.controller.config import ControllerConfig
from svc.service.controller.compose import RunningController, open_controller
from svc_actors.certificates import AcmeSettings
from tests.support.stack import free_port


@asynccontextmanager
async def served(config: ControllerConfig, database_url: str) -> AsyncIterator[RunningController]:
    listening = replace(config, api_port=free_port(), gateway_port=free_port(), operations_port=free_port())
    async with open_controller(listening, {"SVC_DATABASE_URL": database_url}) as running:
        yield running


async def alerts(running: RunningController, *wanted: str) -> dict[str, str]:
    """The open alerts about certificates, once they are these."""
    with trio.fail_after(60):
        while True:
            rows = await running.services.database.fetch(
                "SELECT key, message FROM alerts WHERE closed_at IS NULL AND key LIKE 'certificate%'"
            )
            if {row["key"] for row in rows} == set(wanted):
                return {row["key"]: row["message"] for row in rows}
            await trio.sleep(0.05)  # The alerts are what is waited for.


async def test_what_was_wrong_with_acme_is_over_when_the_settings_want_it_no_longer(
    database_url: str, tmp_path: Path
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        directory = f"https://127.0.0.1:{free_port()}/directory"
        acme = AcmeSettings("ops@provider.example", ("localhost",), terms_agreed=True, directory=directory, port=taken)
        config = ControllerConfig(tmp_path / "controller", "localhost", bind_host="127.0.0.1", acme=acme)
        async with served(config, database_url) as running:
            during = await alerts(running, "certificate-port", "certificate-renewal:service")

    async with served(replace(config, acme=None), database_url) as running:
        await alerts(running)

    assert f"127.0.0.1:{taken} cannot be listened on: Address already in use" in during["certificate-port"]
    assert "127.0.0.1 cannot be reached" in during["certificate-renewal:service"]
