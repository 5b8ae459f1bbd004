"""A panel as its own processes: core, web and what they start, with accounts and sockets that nobody else sees.

The programs run in a mount namespace with a copy of /etc of their own, so that the accounts of sites are none of this
machine's. Ports are free ones.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from svc_actors.panel.certificates.served import VisitorAddress, shown_at
from tests.support.own_etc import copy_etc, with_etc
from tests.support.pebble import Pebble
from tests.support.restic_stand_in import with_cheap_keys
from tests.support.shared import open_for_many
from tests.support.stack import BIN, Program, free_port

WEB_ACCOUNT = "www-data"


@dataclass
class PanelPrograms:
    folder: Path
    pebble: Pebble | None = None
    options: Sequence[str] = ()
    tracer: Sequence[str] = ()
    """A command that the core is started by."""
    http_port: int = field(default_factory=free_port)
    https_port: int = field(default_factory=free_port)
    port: int = field(default_factory=free_port)
    dns_port: int = field(default_factory=free_port)
    sftp_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        if self.pebble is not None:
            # Where that authority looks for its challenges.
            self.http_port = self.pebble.challenge_port
        self.data, self.socket = self.folder / "panel", self.folder / "core.sock"
        core = ["panel", "core", "--data", str(self.data), "--public-host", "localhost", "--socket", str(self.socket)]
        core += ["--port", str(self.port), "--web-user", WEB_ACCOUNT]
        core += ["--sites-http-port", str(self.http_port), "--sites-https-port", str(self.https_port)]
        core += ["--dns-port", str(self.dns_port), "--sftp-port", str(self.sftp_port), "--site-address", "127.0.0.1"]
        if self.pebble is not None:
            core += ["--acme-contact", "ops@example.test", "--acme-terms-agreed", "true"]
            core += ["--acme-directory", self.pebble.directory, "--acme-roots", str(self.pebble.roots)]
        web = ["panel", "web", "--socket", str(self.socket), "--tls", str(self.data / "web")]
        web += ["--port", str(self.port), "--user", WEB_ACCOUNT]
        self.core = Program("core", self.inside([*core, *self.options]), self.folder / "core.log")
        self.web = Program("web", [str(BIN / "svc"), *web], self.folder / "web.log")

    def inside(self, arguments: Sequence[str]) -> list[str]:
        """`svc` with these, in the namespace of this panel."""
        program = with_cheap_keys(self.folder, *self.tracer, str(BIN / "svc"), *arguments)
        return with_etc(self.folder / "etc", *program)

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Of the core, as root of the server, or as whoever the token is of."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # To load the authorities of the web, whom nobody asks here, takes 30 ms of CPU a client.
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)
        return httpx.AsyncClient(transport=transport, base_url="http://core/api/v1", headers=headers, timeout=60)

    async def start(self) -> None:
        self.core.start()
        async with self.client() as client:
            with trio.fail_after(60):
                while True:
                    try:
                        if (await client.get("/server/status")).status_code == 200:
                            return
                    except httpx.TransportError:
                        assert self.core.running(), self.core.tail()
                    await trio.sleep(0.05)  # It starts outside of this process.

    async def start_web(self) -> None:
        self.web.start()
        with trio.fail_after(60):
            while await shown_at(VisitorAddress("127.0.0.1", self.port), "localhost") is None:
                assert self.web.running(), self.web.tail()
                await trio.sleep(0.05)  # It starts outside of this process.

    async def customer(self, email: str = "ada@example.com", password: str = "Correct-Horse-42") -> None:
        async with self.client() as root:
            wanted = {"email": email, "name": "Ada", "role": "customer", "password": password}
            answer = await root.post("/users", json=wanted)
            assert answer.status_code < 300, answer.text

    async def site(self, domain: str, owner: str = "ada@example.com", **values: Any) -> dict[str, Any]:
        """A static site that is active."""
        async with self.client() as root:
            answer = await root.post(
                "/sites", json={"domain": domain, "type": "static", "admin_email": owner, **values}
            )
            assert answer.status_code < 300, answer.text
            site: dict[str, Any] = answer.json()
        return site

    async def visit(self, domain: str, path: str = "/", *, trusted: str | None = None) -> httpx.Response:
        """Open a site as a visitor does: by HTTPS, if it is told whom to trust."""
        if trusted is None:
            plain = f"http://127.0.0.1:{self.http_port}"
            async with httpx.AsyncClient(base_url=plain, verify=False, timeout=60) as http:
                return await http.get(path, headers={"Host": domain})
        async with httpx.AsyncClient(verify=ssl.create_default_context(cadata=trusted), timeout=60) as http:
            return await http.get(
                f"https://127.0.0.1:{self.https_port}{path}",
                headers={"Host": domain},
                extensions={"sni_hostname": domain},
            )

    async def stop(self) -> None:
        for program in (self.web, self.core):
            if program.running():
                await program.stop()
        ended = [str(BIN / "svc"), "panel", "stop", "--data", str(self.data)]
        await trio.to_thread.run_sync(lambda: subprocess.run(ended, check=True, capture_output=True, timeout=120))


@contextmanager
def shared_panel_programs(options: Sequence[str] = (), pebble: Pebble | None = None) -> Iterator[PanelPrograms]:
    """A panel that has started, for the tests of a module."""
    with open_for_many(open_panel_programs(pebble, options)) as programs:
        trio.run(programs.start)
        yield programs


def _folder(wanted: Path | None = None) -> Path:
    folder = wanted or Path(tempfile.mkdtemp(prefix="svc-panel-"))
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    copy_etc(folder / "etc")
    return folder


@asynccontextmanager
async def open_panel_programs(
    pebble: Pebble | None = None,
    options: Sequence[str] = (),
    tracer: Sequence[str] = (),
    folder: Path | None = None,
) -> AsyncIterator[PanelPrograms]:
    """Programs that are not started yet; whatever they start is stopped at the end. `folder`: the one that they had
    before, which is gone."""
    folder = await trio.to_thread.run_sync(_folder, folder)
    programs = PanelPrograms(folder, pebble, options, tracer)
    try:
        yield programs
    finally:
        with trio.CancelScope(shield=True, relative_deadline=180):
            if programs.data.exists():
                await programs.stop()
            await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
