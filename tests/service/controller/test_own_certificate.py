"""A controller that shows browsers a certificate of its operator's, whom no node knows."""

from __future__ import annotations

import shlex
import ssl
from pathlib import Path
from uuid import uuid4

import httpx
import trio

from svc.service.controller.compose import open_controller
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.enrol import enrol
from tests.support.certificates import self_signed
from tests.support.configuration import local_config


async def test_browsers_see_it_and_nodes_join_by_the_controllers_own(database_url: str, tmp_path: Path) -> None:
    files = self_signed(tmp_path)
    config = local_config(tmp_path / "controller", public_host="localhost", certificate=(files.certificate, files.key))
    async with open_controller(config, {"SVC_DATABASE_URL": database_url}) as running:
        guard = {"X-Service-Request": "1", "Origin": config.public_url}
        browsers = ssl.create_default_context(cafile=str(files.certificate))
        async with httpx.AsyncClient(
            verify=browsers, base_url=f"{config.public_url}/api/v1", headers=guard, timeout=20
        ) as browser:
            account = {"email": "ada@example.test", "name": "Ada", "password": "Correct-Horse-42"}
            (await browser.post("/setup", json={"token": running.setup_token, **account})).raise_for_status()
            made = (await browser.post("/nodes/bootstrap", json={"name": "alpha"})).json()

        # The command's first half: curl takes nothing but the key that is pinned.
        curl = shlex.split(made["command"].partition("|")[0])
        script = (await trio.run_process(curl, capture_stdout=True)).stdout
        folder = AgentFolder(tmp_path / "node")
        enrolled = await enrol(
            folder,
            controller=config.public_url,
            token=made["token"],
            fingerprint=made["fingerprint"],
            hostname="alpha",
            host=uuid4(),
        )

    assert b"Turns this Debian host into a compute node" in script
    assert enrolled.gateway_port == config.gateway_port
