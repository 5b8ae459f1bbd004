"""A real nginx in a folder and on ports of its own, with sites whose pages say which site they are."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import ListeningSocket, Service, ServiceName, ServiceStatus
from svc_webhost.nginx import Certificate, Generations, Ports, SiteServer, StaticRoot
from svc_webhost.nginx.program import NGINX
from tests.support.certificates import self_signed
from tests.support.stack import free_port

FIRST = 1001


@dataclass
class ProcessLauncher:
    """Services as children of this process, which are not started again when they end."""

    processes: dict[ServiceName, subprocess.Popen[bytes]] = field(default_factory=dict)
    services: dict[ServiceName, Service] = field(default_factory=dict)
    held: dict[object, socket.socket] = field(default_factory=dict)
    reloads: int = 0
    before_reload: Callable[[], object] = lambda: None

    async def ensure(self, service: Service) -> ServiceStatus:
        self.services[service.name] = service
        if not (await self.status(service.name)).running:
            self.processes[service.name] = self._start(service)
        return await self.status(service.name)

    def _start(self, service: Service) -> subprocess.Popen[bytes]:
        environment, descriptors = dict(service.environment), list[int]()
        for wanted in service.sockets:
            if wanted.path not in self.held:
                wanted.path.unlink(missing_ok=True)
                listening = self.held[wanted.path] = socket.socket(socket.AF_UNIX)
                listening.bind(str(wanted.path))
                shutil.chown(wanted.path, wanted.owner, wanted.group)
                wanted.path.chmod(wanted.mode)
                listening.listen()
        for port in service.ports:
            if port not in self.held:
                family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
                self.held[port] = socket.create_server((port.address, port.port), family=family, backlog=1024)
        for handed in service.listening:
            held = self.held[handed.path if isinstance(handed, ListeningSocket) else handed]
            held.setblocking(not service.nonblocking)
            descriptors.append(held.fileno())
            told = handed.form.format(descriptor=held.fileno())
            environment[handed.variable] = environment.get(handed.variable, "") + told
        assert service.log is not None
        with service.log.open("ab") as log:
            return subprocess.Popen(
                service.command,
                env=environment,
                pass_fds=descriptors,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=service.umask,
            )

    async def reload(self, name: ServiceName) -> None:
        self.reloads += 1
        self.before_reload()
        self.processes[name].send_signal(signal.SIGHUP)

    async def stop(self, name: ServiceName) -> None:
        if (process := self.processes.pop(name, None)) is not None:
            process.send_signal(signal.SIGTERM)
            await trio.to_thread.run_sync(process.wait)

    async def status(self, name: ServiceName) -> ServiceStatus:
        process = self.processes.get(name)
        running = process is not None and process.poll() is None
        return ServiceStatus(running=running, pid=process.pid if running and process is not None else None)

    async def names(self) -> frozenset[ServiceName]:
        return frozenset(self.services)

    def end(self, name: ServiceName) -> None:
        """As the kernel ends it: at once, with its workers."""
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name)
        for held in self.held.values():
            held.close()


@dataclass
class Sites:
    """`visit` and `visit_tls` ask as a browser would that resolves every name to this machine."""

    folders: HostFolders
    ports: Ports
    launcher: ProcessLauncher
    generations: Generations

    def site(self, number: int, **values: Any) -> SiteServer:
        """A site with a page of its own: `page of <number>`."""
        root = self.folders.sites / f"s{number}" / "public"
        if not root.exists():
            root.mkdir(parents=True)
            (root / "index.html").write_text(f"page of {number}")
        given = {"number": number, "domain": f"site{number}.example", "serves": StaticRoot(root=str(root)), **values}
        return SiteServer(**given)

    def sites(self, count: int) -> list[SiteServer]:
        return [self.site(number) for number in range(FIRST, FIRST + count)]

    def certificate(self, name: str) -> Certificate:
        folder = self.folders.certificates / name
        folder.mkdir(parents=True)
        files = self_signed(folder)
        return Certificate(chain=str(files.certificate), key=str(files.key))

    async def visit(self, host: str, path: str = "/", **options: Any) -> httpx.Response:
        # To load the authorities of the web, whom nobody asks here, takes 30 ms of CPU a client.
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as http:
            return await http.get(f"http://127.0.0.1:{self.ports.http}{path}", headers={"Host": host, **options})

    async def visit_tls(self, host: str, path: str = "/", *, name: str | None = None) -> httpx.Response:
        """`name`: what the handshake asks for, where it is not the host."""
        async with httpx.AsyncClient(trust_env=False, verify=False, http2=False, timeout=30) as http:
            return await http.get(
                f"https://127.0.0.1:{self.ports.https}{path}",
                headers={"Host": host},
                extensions={"sni_hostname": name or host},
            )

    async def shown(self, host: str) -> bytes:
        """The certificate that is shown for a host. Raises `ssl.SSLError` where the handshake is rejected."""

        def handshake() -> bytes:
            context = ssl._create_unverified_context()
            with socket.create_connection(("127.0.0.1", self.ports.https), timeout=30) as plain:
                with context.wrap_socket(plain, server_hostname=host) as secure:
                    return secure.getpeercert(binary_form=True) or b""

        return await trio.to_thread.run_sync(handshake)

    def workers(self) -> dict[int, str]:
        """The titles of nginx's workers, the old ones after a reload included, by their process."""
        master = self.launcher.processes[NGINX].pid
        found = {}
        for child in Path(f"/proc/{master}/task/{master}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().rstrip(b"\0").decode().strip()
        return found

    def again(self) -> Generations:
        """As a new process finds it."""
        return Generations(self.folders, self.launcher, self.ports)

    @property
    def master(self) -> int:
        return self.launcher.processes[NGINX].pid

    @asynccontextmanager
    async def watched(self, sites: list[SiteServer]) -> AsyncIterator[list[str]]:
        """Visit these sites all the time; gives what was not as it should be."""
        problems: list[str] = []
        visits = 0

        async def visitor() -> None:
            nonlocal visits
            async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as http:
                while True:
                    for site in sites:
                        address = f"http://127.0.0.1:{self.ports.http}/"
                        try:
                            # A connection of its own each time: a worker that ends closes those that are idle.
                            headers = {"Host": site.domain, "Connection": "close"}
                            answer = await http.get(address, headers=headers)
                        except httpx.TransportError as error:
                            problems.append(f"{site.domain}: {error!r}")
                        else:
                            if answer.text != f"page of {site.number}":
                                problems.append(f"{site.domain}: {answer.status_code} {answer.text[:80]}")
                        visits += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(visitor)
            try:
                yield problems
            finally:
                nursery.cancel_scope.cancel()
        assert visits


@contextmanager
def nginx_sites() -> Iterator[Sites]:
    """Nothing is served yet."""
    # Not pytest's folders: nginx's workers are another user, who cannot reach what lies in them.
    data = Path(tempfile.mkdtemp(prefix="svc-nginx-"))
    data.chmod(0o711)
    folders = HostFolders(data)
    folders.sites.mkdir()
    launcher = ProcessLauncher()
    ports = Ports(free_port(), free_port(), ipv6=socket.has_ipv6)
    try:
        yield Sites(folders, ports, launcher, Generations(folders, launcher, ports))
    finally:
        launcher.close()
        shutil.rmtree(data)
