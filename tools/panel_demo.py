"""A hosting panel on one machine, set up as a new operator would: core, web, an administrator, a working WordPress.

It uses no private interface: after starting the two programs, everything goes over the core's socket, as `svc` does,
and the site is opened as a visitor would. A second run finds what the first one created. A local authority (Pebble)
replaces a public one, and asks the panel's own name server where the site is.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import trio
from demonstration import BIN, DEFAULT_DATA, SAY, CommandLine, main, require_free, require_room, require_root
from program import Program, holding, reap

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import LOCAL_URL, Profile
from svc.cli.services import CORE_SOCKET, ServiceKind, service_of
from svc_webhost.self_signed import keep_self_signed

EMAIL = "admin@example.test"
CUSTOMER = "customer@example.test"
DOMAIN = "demo.example.com"
TITLE = "The demonstration"
WEB_ACCOUNT = "svc-web"
PANEL_PORT = 7443
READY_SECONDS = 120.0
SITE_SECONDS = 120.0
NEEDED_GIB = 1


class PanelDemo:
    """`port`: the panel's; the two after it are the local authority's. With the default data folder sites are served on
    80 and 443, otherwise on ports next to the panel's."""

    def __init__(self, data: Path, port: int) -> None:
        self.data, self.port = data, port
        default = data == DEFAULT_DATA
        self.panel_data, self.authority = data / "panel", data / "authority"
        self.socket = CORE_SOCKET if default else data / "core.sock"
        self.http, self.https = (80, 443) if default else (port + 3, port + 4)
        self.dns = 53 if default else port + 5
        self.sftp = 2222 if default else port + 6
        self.directory = f"https://localhost:{port + 1}/dir"
        self.ports = {
            port: "the panel",
            port + 1: "the local authority",
            port + 2: "the local authority",
            self.http: "sites",
            self.https: "sites over TLS",
            self.sftp: "SFTP",
        }
        svc = str(BIN / "svc")
        core = [svc, "panel", "core", "--data", str(self.panel_data), "--public-host", "localhost"]
        core += ["--socket", str(self.socket), "--port", str(port)]
        core += ["--sites-http-port", str(self.http), "--sites-https-port", str(self.https)]
        core += ["--dns-port", str(self.dns), "--sftp-port", str(self.sftp), "--site-address", "127.0.0.1"]
        core += ["--acme-contact", EMAIL, "--acme-terms-agreed", "true", "--acme-directory", self.directory]
        core += ["--acme-roots", str(self.authority / "certificate.pem")]
        web = [svc, "panel", "web", "--socket", str(self.socket), "--tls", str(self.panel_data / "web")]
        self.core = Program("core", data, core)
        self.web = Program("web", data, holding([("web", port)], [*web, "--port", str(port)]))
        authority = ["/usr/bin/pebble", "-config", str(self.authority / "pebble.json")]
        self.pebble = Program("pebble", data, [*authority, "-dnsserver", f"127.0.0.1:{self.dns}"])

    async def up(self) -> None:
        self._check_server()
        self._make_authority()
        # First, so that its port is bound before a program of a site runs; it waits for the core.
        self.web.start()
        with SAY.status("starting PostgreSQL and the core"):
            self.core.start()
            await self._until_ready()
        self.pebble.start()
        async with Client.open(Profile(url=LOCAL_URL, socket=str(self.socket))) as client:
            password = await self._administrator(client)
            site = await self._site(client)
        await self._until_visited(site)
        self._tell(site, password)

    async def down(self) -> None:
        """The core last: it also stops what serves the sites."""
        await self.web.stop()
        await self.pebble.stop()
        if self.core.pid() is not None:
            stopping = [str(BIN / "svc"), "panel", "stop", "--data", str(self.panel_data)]
            await self.core.stop()
            await trio.run_process(stopping, check=False)
        SAY.print("stopped; the data stays in " + str(self.data), soft_wrap=True)

    def _check_server(self) -> None:
        """Report in advance what would fail halfway."""
        require_root("makes accounts and serves sites")
        require_room(self.data, NEEDED_GIB)
        try:
            pwd.getpwnam(WEB_ACCOUNT)
        except KeyError:
            made = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", WEB_ACCOUNT]
            subprocess.run(made, check=True)
        if self.core.pid() is None:
            require_free(self.ports, "--data and --port choose other ports")

    def _make_authority(self) -> None:
        """The settings of the local authority, and the certificate of its own server."""
        if (self.authority / "pebble.json").exists():
            return
        self.authority.mkdir(exist_ok=True)
        keep_self_signed(self.authority, ("localhost",), os.getgid())
        settings = {
            "listenAddress": f"127.0.0.1:{self.port + 1}",
            "managementListenAddress": f"127.0.0.1:{self.port + 2}",
            "certificate": str(self.authority / "certificate.pem"),
            "privateKey": str(self.authority / "key.pem"),
            "httpPort": self.http,
            "tlsPort": self.https,
        }
        (self.authority / "pebble.json").write_text(json.dumps({"pebble": settings}))

    async def _until_ready(self) -> None:
        with trio.move_on_after(READY_SECONDS):
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(self.socket))) as http:
                while self.core.pid() is not None:
                    try:
                        if (await http.get(f"{LOCAL_URL}/api/v1/server/status")).is_success:
                            return
                    except httpx.TransportError:
                        pass  # it does not listen yet
                    await trio.sleep(0.1)
                    reap()
        raise Failure(Exit.UNAVAILABLE, "the core did not start", f"its log is {self.core.log}")

    async def _administrator(self, client: Client) -> str | None:
        """The administrator's password, if they were created just now."""
        people = (await client.call("GET", "/users", query={"q": EMAIL}))["items"]
        if any(each["email"] == EMAIL for each in people):
            return None
        password = secrets.token_urlsafe(12) + "-A1a"
        for email, role in ((EMAIL, "administrator"), (CUSTOMER, "customer")):
            wanted = {"email": email, "name": email.partition("@")[0], "role": role, "password": password}
            await client.call("POST", "/users", body=wanted)
        return password

    async def _site(self, client: Client) -> dict[str, Any]:
        sites = (await client.call("GET", "/sites", query={"q": DOMAIN}))["items"]
        site: dict[str, Any] | None = next((each for each in sites if each["domain"] == DOMAIN), None)
        ordered = trio.current_time()
        new = site is None
        if site is None:
            SAY.print(f"creating the site {DOMAIN} with WordPress")
            wanted = {"domain": DOMAIN, "type": "wordpress", "admin_email": CUSTOMER, "title": TITLE}
            site = await client.call("POST", "/sites", body=wanted)
            await client.call("POST", f"/sites/{site['id']}/dns/point", body={})
        await self._until_active(client, site)
        await self._until_certified(client, site)
        if new:
            SAY.print(
                f"it has WordPress and its certificate {trio.current_time() - ordered:.1f} s after it was ordered"
            )
        return site

    async def _until_active(self, client: Client, site: dict[str, Any]) -> None:
        with trio.move_on_after(SITE_SECONDS), SAY.status("installing WordPress"):
            while (site := await client.call("GET", f"/sites/{site['id']}"))["status"] == "creating":
                await trio.sleep(0.2)
        if site["status"] != "active":
            what = f"{DOMAIN} was not made: {site['reason'] or site['status']}"
            raise Failure(Exit.TASK_FAILED, what, f"the core's log is {self.core.log}")

    async def _until_certified(self, client: Client, site: dict[str, Any]) -> None:
        certificate: dict[str, Any] = {}
        with trio.move_on_after(SITE_SECONDS), SAY.status("waiting for its certificate"):
            while not certificate.get("served"):
                certificate = await client.call("GET", f"/sites/{site['id']}/ssl")
                if certificate["last_error"]:
                    # The order may have come before the name server was up; the next automatic attempt would be some
                    # minutes later.
                    await client.call("POST", f"/sites/{site['id']}/ssl", body={})
                    await trio.sleep(2.0)
                await trio.sleep(0.3)
            return
        why = certificate.get("last_error") or "no reason is known"
        raise Failure(Exit.WAIT_TIMED_OUT, f"{DOMAIN} has no certificate: {why}", f"the core's log is {self.core.log}")

    async def _until_visited(self, site: dict[str, Any]) -> None:
        """Open the site as a visitor would, in a browser that trusts the local authority."""
        trust = ssl.create_default_context(cafile=self.authority / "certificate.pem")
        async with httpx.AsyncClient(verify=trust) as http:
            roots = (await http.get(f"https://localhost:{self.port + 2}/roots/0")).text
        (self.authority / "roots.pem").write_text(roots)
        command = ["curl", "--silent", "--show-error", "--fail", "--cacert", str(self.authority / "roots.pem")]
        command += ["--resolve", f"{DOMAIN}:{self.https}:127.0.0.1", f"https://{DOMAIN}:{self.https}/"]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        if done.returncode != 0:
            raise Failure(Exit.UNAVAILABLE, f"{DOMAIN} does not answer: {done.stderr.decode().strip()}")
        if TITLE.encode() not in done.stdout:
            raise Failure(Exit.UNAVAILABLE, f"{DOMAIN} answers, and not with its WordPress")
        SAY.print(f"{DOMAIN} answers over HTTPS, {len(done.stdout)} bytes")

    def _tell(self, site: dict[str, Any], password: str | None) -> None:
        # A current profile, as of a controller that was tried here, would win over the core.
        meant = self.socket == CORE_SOCKET and service_of(os.environ, ()) is ServiceKind.PANEL
        svc = str(BIN / "svc") + ("" if meant else f" --socket {self.socket}")
        admin = f"password {password}" if password else f"password as shown by the first run; a new one: {svc} person"
        print("\n")
        print(f"Panel          https://localhost:{self.port}/  (a certificate of its own: {self.panel_data / 'web'})")
        print(f"Administrator  {EMAIL}, {admin}")
        print(f"Site           https://{DOMAIN}:{self.https}/  (curl --resolve {DOMAIN}:{self.https}:127.0.0.1 ...)")
        print(f"Its dashboard  {svc} wordpress login {site['id']}   (a link that logs in once, as {CUSTOMER})")
        print(f"Name server    dig @127.0.0.1 -p {self.dns} {DOMAIN}")
        print(f"As root        {svc} site list")
        data = "" if self.data == DEFAULT_DATA else f" --data {self.data}"
        print(f"Stop           tools/run --panel --stop{data}", flush=True)


LINE = CommandLine(
    program="tools/run --panel",
    description="A hosting panel on this machine.",
    port=PANEL_PORT,
    port_help="the panel's port",
    detach_help="return once the site answers",
    stop_help="stop everything",
    interrupted="interrupted; tools/run --panel --stop stops everything",
)

if __name__ == "__main__":
    main(LINE, PanelDemo)
