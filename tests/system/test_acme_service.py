"""A controller whose certificate Pebble makes: got, shown, renewed, while browsers and nodes are connected."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import trio
from cryptography import x509

from svc.controller.config import ControllerConfig
from svc.service.controller.compose import open_controller
from svc_actors.certificates import AcmeSettings
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.enrol import enrol
from svc_nodeagent.simulated_fleet import Fleet
from tests.support.pebble import Pebble, open_pebble
from tests.support.stack import free_port

pytestmark = [pytest.mark.system, pytest.mark.isolated]

NAME = "controller.example"
PATIENCE = 60.0


@dataclass
class Site:
    """A controller that is served, and its administrator, who trusts its own authority."""

    config: ControllerConfig
    browser: httpx.AsyncClient

    async def shown(self) -> x509.Certificate:
        """What a client gets that asks for the controller's name now, vouched for by whomever."""
        asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
        return x509.load_der_x509_certificate(await _handshake(self.config.api_port, asking))

    async def verified(self, roots: str) -> x509.Certificate:
        """The same, with what browsers make sure of: the name, the dates, and who vouches for it."""
        return x509.load_der_x509_certificate(
            await _handshake(self.config.api_port, ssl.create_default_context(cadata=roots))
        )

    async def certificate(self) -> dict[str, Any]:
        return dict((await self.browser.get("/certificate")).raise_for_status().json())

    async def alerts(self) -> list[str]:
        return [each["message"] for each in (await self.browser.get("/alerts")).json()["items"]]


async def _handshake(port: int, context: ssl.SSLContext) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    named = trio.SSLStream(stream, context, server_hostname=NAME, https_compatible=True)
    with trio.fail_after(60):
        await named.do_handshake()
    certificate = named.getpeercert(binary_form=True)
    await trio.aclose_forcefully(named)
    assert isinstance(certificate, bytes)
    return certificate


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE):
        while not await found():
            await trio.sleep(0.1)  # The outside world is asked again.


def configured(folder: Path, pebble: Pebble, **changes: Any) -> ControllerConfig:
    acme = AcmeSettings(
        "ops@provider.example",
        (NAME,),
        terms_agreed=changes.pop("terms_agreed", True),
        directory=pebble.directory,
        roots=pebble.roots,
        port=pebble.challenge_port,
    )
    return ControllerConfig(
        data_dir=folder / "controller",
        public_host="localhost",
        bind_host="127.0.0.1",
        api_port=free_port(),
        gateway_port=free_port(),
        operations_port=free_port(),
        acme=acme,
    )


@asynccontextmanager
async def served(config: ControllerConfig, database_url: str) -> AsyncIterator[Site]:
    async with open_controller(config, {"SVC_DATABASE_URL": database_url}) as running:
        guard = {"X-Service-Request": "1", "Origin": config.public_url}
        # The certificate changes under it: whom this client trusts is not what is asked here.
        async with httpx.AsyncClient(
            verify=False,
            base_url=f"{config.public_url}/api/v1",
            headers=guard,
            timeout=20,
        ) as browser:
            account = {"email": "ada@example.test", "name": "Ada", "password": "Correct-Horse-42"}
            if running.setup_token is not None:
                token = {"token": running.setup_token}
                (await browser.post("/setup", json=token | account)).raise_for_status()
            else:
                known = {"email": account["email"], "password": account["password"]}
                (await browser.post("/auth/login", json=known)).raise_for_status()
            yield Site(config, browser)


async def test_what_is_connected_stays_connected_over_the_first_certificate_and_its_renewal(
    database_url: str, tmp_path: Path
) -> None:
    async with open_pebble(tmp_path / "pebble", lifetime_seconds=30) as pebble:
        await pebble.program.kill()
        config = configured(tmp_path, pebble)
        async with served(config, database_url) as site, trio.open_nursery() as nursery:
            await until(lambda: failing(site))
            own = await site.shown()
            [alert] = await site.alerts()
            assert "svc controller" in own.issuer.rfc4514_string(), "the controller's own authority until then"
            assert f"No certificate for {NAME} from localhost: localhost cannot be reached" in alert

            fleet = Fleet(tmp_path / "nodes", 1)
            async with httpx.AsyncClient(
                verify=False,
                base_url=f"{config.public_url}/api/v1",
                headers=dict(site.browser.headers),
                cookies=site.browser.cookies,
            ) as joining:
                await fleet.enrol(joining, lambda name: None)
            await nursery.start(fleet.run)
            await until(lambda: online(site))
            [node] = (await site.browser.get("/nodes")).json()["items"]
            before = (await site.browser.get(f"/nodes/{node['id']}")).json()["connected_at"]
            events = trio.open_memory_channel[str](100)
            nursery.start_soon(read_events, site, events[0])

            await pebble.start()
            root = await pebble.root()
            (await site.browser.post("/certificate/renew")).raise_for_status()
            await until(lambda: other(site, own))
            first = await site.verified(root)
            await until(lambda: other(site, first))
            second = await site.verified(root)

            assert first.public_key() != second.public_key()
            names = second.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert names.get_values_for_type(x509.DNSName) == [NAME]
            assert await site.alerts() == []
            shown = await site.certificate()
            assert (shown["source"], shown["names"], shown["last_error"]) == ("acme", [NAME], None)

            (await site.browser.post("/locations", json={"name": "told to the stream of before"})).raise_for_status()
            with trio.fail_after(60):
                async for line in events[1]:
                    if "told to the stream of before" in line:
                        break
            assert (await site.browser.get(f"/nodes/{node['id']}")).json()["connected_at"] == before

            await joins(site, tmp_path)
            nursery.cancel_scope.cancel()


async def failing(site: Site) -> bool:
    return bool((await site.certificate())["failures"])


async def online(site: Site) -> bool:
    return [each["state"] for each in (await site.browser.get("/nodes")).json()["items"]] == ["online"]


async def other(site: Site, than: x509.Certificate) -> bool:
    return (await site.shown()).serial_number != than.serial_number


async def read_events(site: Site, told: trio.MemorySendChannel[str]) -> None:
    """One stream, from before the first certificate on."""
    async with site.browser.stream("GET", "/events", timeout=None) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                await told.send(line)


async def joins(site: Site, folder: Path) -> None:
    """Another node, by the command that is printed for it: it takes the controller's own authority and no other."""
    made = (await site.browser.post("/nodes/bootstrap", json={"name": "beta"})).json()
    curl = shlex.split(made["command"].partition("|")[0])
    script = (await trio.run_process(curl, capture_stdout=True)).stdout
    await enrol(
        AgentFolder(folder / "beta"),
        controller=site.config.public_url,
        token=made["token"],
        fingerprint=made["fingerprint"],
        hostname="beta",
        host=uuid4(),
    )
    assert b"Turns this Debian host into a compute node" in script


async def test_a_name_that_leads_nowhere_is_told_until_it_leads_here(database_url: str, tmp_path: Path) -> None:
    async with open_pebble(tmp_path / "pebble") as pebble:
        await pebble.lead(NAME, None)
        async with served(configured(tmp_path, pebble), database_url) as site:
            await until(lambda: failing(site))
            failed, [alert] = await site.certificate(), await site.alerts()

            await pebble.lead(NAME, "127.0.0.1")
            (await site.browser.post("/certificate/renew")).raise_for_status()
            await until(lambda: issued(site))

            assert failed["source"] == "authority"
            assert failed["last_error"].startswith(f"{NAME}: ")
            assert failed["last_error"] in alert
            assert (await site.verified(await pebble.root())).not_valid_after_utc
            assert await site.alerts() == []


async def issued(site: Site) -> bool:
    return bool((await site.certificate())["source"] == "acme") and (
        await site.shown()
    ).issuer.rfc4514_string().startswith("CN=Pebble")


async def test_a_restarted_controller_shows_the_same_certificate_from_its_first_moment(
    database_url: str, tmp_path: Path
) -> None:
    async with open_pebble(tmp_path / "pebble") as pebble:
        config = configured(tmp_path, pebble)
        async with served(config, database_url) as site:
            await until(lambda: issued(site))
            before = await site.shown()
        (config.data_dir / "tls" / "acme.pem").unlink()
        await pebble.program.kill()

        async with served(config, database_url) as site:
            again = await site.shown()

    assert again == before
    assert (config.data_dir / "tls" / "acme.pem").stat().st_mode & 0o777 == 0o600


async def test_before_the_terms_are_agreed_to_nothing_is_asked_of_the_authority(
    database_url: str, tmp_path: Path
) -> None:
    async with open_pebble(tmp_path / "pebble") as pebble:
        asked = len(pebble.program.log.read_text().splitlines())
        async with served(configured(tmp_path, pebble, terms_agreed=False), database_url) as site:
            [alert] = await site.alerts()
            shown = await site.certificate()
            renewed = await site.browser.post("/certificate/renew")

        assert "before its terms are accepted" in alert
        assert (shown["source"], shown["state"]) == ("authority", "terms_not_agreed")
        assert renewed.status_code == 409
        assert len(pebble.program.log.read_text().splitlines()) == asked
