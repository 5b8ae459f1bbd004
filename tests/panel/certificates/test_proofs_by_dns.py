"""Certificates whose names are proven by DNS: wildcards, in zones that this server answers for."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio

from svc_actors.certificates import AcmeSettings
from svc_actors.panel.certificates.names import SiteNames, chosen_wildcards
from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_webhost.folders import HostFolders
from svc_webhost.nginx import SiteServer
from svc_webhost.preview_certificate import preview_certificate
from tests.support.acme_authority import DIRECTORY, FakeAuthority, thumbprint
from tests.support.dns import RecordedDelegations, RecordedNameServer
from tests.support.harness import Client
from tests.support.identity import MAIL
from tests.support.panel import PanelHarness, open_panel, recorded_host

ACME = AcmeSettings("ops@example.com", (), terms_agreed=True, directory=DIRECTORY)
RECORD = "_acme-challenge.example.com"


@pytest.fixture(autouse=True)
def asking_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority of these tests has decided by then."""
    monkeypatch.setattr("svc_actors.certificates.keeper.SHORTEST_POLL_SECONDS", 0.0)


@dataclass
class Server:
    """What outlives a core: its name server, its parents, the authority that it asks."""

    knot: RecordedNameServer = field(default_factory=RecordedNameServer)
    parents: RecordedDelegations = field(
        default_factory=lambda: RecordedDelegations({"example.com": frozenset({"panel.test"})})
    )
    authority: FakeAuthority = field(default_factory=FakeAuthority)

    def orders(self) -> int:
        """Of the site; the panel has one for itself."""
        return sum("panel.test" not in order.names for order in self.authority.orders.values())

    def expected(self, token: str) -> str:
        """What dns-01 has the record be, as a zone file has it."""
        [account] = self.authority.accounts.values()
        digest = hashlib.sha256(f"{token}.{thumbprint(account['jwk'])}".encode()).digest()
        return f'"{base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}"'

    def found(self, token: str, name: str) -> dict[str, Any] | None:
        """The verdict of an authority that asks this server."""
        answers = self.knot.answers(f"_acme-challenge.{name.removeprefix('*.')}", "TXT")
        if self.expected(token) in answers:
            return None
        return {"type": "urn:ietf:params:acme:error:unauthorized", "detail": f"no proof among {sorted(answers)}"}

    @asynccontextmanager
    async def core(
        self, database: Database, folder: Path, open_acme: Callable[[], httpx.AsyncClient] | None = None
    ) -> AsyncIterator[World]:
        host = replace(recorded_host(self.knot), delegations=self.parents, open_acme=open_acme or self.authority.client)
        async with open_panel(database, folder, host, acme=ACME, mail=MAIL, loops=["web server"]) as panel:
            site = await database.fetchval("SELECT id FROM sites")
            person = await database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
            ada = panel.program(await panel.token(person or await panel.person("ada@example.com")))
            administrator = await database.fetchval("SELECT id FROM users WHERE role = 'administrator'")
            root = panel.program(
                await panel.token(administrator or await panel.person("r@example.com", "administrator"))
            )
            if site is None:
                made = await ada.post(
                    "/sites", {"domain": "example.com", "type": "static", "aliases": ["www.example.com"]}
                )
                site = made.json()["id"]
                world = World(self, panel, ada, root, site)
                await world.look()
                assert (await world.shown())["state"] == "active"
                assert (await ada.post(f"/sites/{site}/dns/point")).status_code == 200
            yield World(self, panel, ada, root, site)


@dataclass
class World:
    server: Server
    panel: PanelHarness
    ada: Client
    root: Client
    site: str

    async def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ada.get(f"/sites/{self.site}/ssl")).json()
        return found

    async def look(self) -> None:
        """The panel does for certificates what there is to do, and the orders that were due have ended."""
        await self.panel.step("certificates of sites")

    def site_served(self) -> SiteServer:
        web: Any = self.panel.host.web
        [served] = [each for each in web.sites.values() if each.domain == "example.com"]
        return cast(SiteServer, served)

    async def preview(self) -> None:
        """Previews next to the site, which is an administrator's."""
        await self.panel.database.execute("UPDATE users SET role = 'administrator' WHERE email = 'ada@example.com'")
        answer = await self.root.patch("/settings", {"preview_domain": "previews.example.com"})
        assert answer.status_code == 200, answer.text

    async def failed_at(self) -> str | None:
        at: str | None = await self.panel.database.fetchval(
            "SELECT failed_at::text FROM acme_certificates WHERE name LIKE 'site:%'"
        )
        return at

    async def issue(self, by: Client | None = None, **wish: Any) -> httpx.Response:
        return await (by or self.ada).post(f"/sites/{self.site}/ssl", wish)


async def test_a_wildcard_is_certified_by_records_beside_the_customers_own_that_go_again(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    server.authority.refused_nonces = 10
    async with server.core(panel_database, tmp_path) as world:
        own = {"name": "_acme-challenge", "ttl": 7200, "data": {"type": "TXT", "text": "hers"}}
        await world.ada.post(f"/sites/{world.site}/dns/records", own)
        server.authority.verdict = server.found

        ordered = await world.issue(challenge="dns-01", wildcards=["*.EXAMPLE.com"])
        await world.look()
        shown = await world.shown()
        left = server.knot.answers(RECORD, "TXT")
        records = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
        first = shown["fingerprint"]
        renewed = await world.issue(by=world.root)
        await world.look()
        again = await world.shown()
        events = await panel_database.fetch("SELECT event FROM webhook_events WHERE event LIKE 'ssl.%'")

    assert ordered.status_code == 200, ordered.text
    assert (shown["challenge"], shown["wildcards"]) == ("dns-01", ["*.example.com"])
    assert shown["names"] == ["example.com", "*.example.com"]
    assert left == {'"hers"'}
    assert renewed.status_code == 200
    assert again["fingerprint"] != first
    assert (again["challenge"], again["names"]) == ("dns-01", ["example.com", "*.example.com"])
    assert [(each["ttl"], each["managed"]) for each in records if each["type"] == "TXT"] == [(7200, False)]
    assert {row["event"] for row in events} == {"ssl.issued"}


async def test_a_name_below_the_wildcard_is_served_with_it_and_another_sites_is_not(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.authority.verdict = server.found
        await world.issue(challenge="dns-01", wildcards=["*.example.com"])
        await world.look()
        assert (await world.shown())["names"] == ["example.com", "*.example.com"]
        server.authority.verdict = lambda token, name: {"type": "urn:ietf:params:acme:error:dns", "detail": "none"}
        other = await world.ada.post("/sites", {"domain": "other.example.com", "type": "static"})

        await world.ada.post(f"/sites/{world.site}/domains", {"name": "new.example.com"})
        web: Any = world.panel.host.web
        served = {each.domain: each for each in web.sites.values()}
        await world.look()
        failed = (await world.ada.get(f"/sites/{other.json()['id']}/ssl")).json()["last_error"]
        orders = [order.names for order in server.authority.orders.values()]

    assert "new.example.com" in served["example.com"].hosts
    assert served["example.com"].certificate is not None
    assert "other.example.com" not in served["example.com"].hosts
    assert served["other.example.com"].certificate is None
    assert failed is not None
    assert orders.count(["example.com", "*.example.com"]) == 1, "the certificate that there is covers it"


@pytest.mark.parametrize(
    ("wish", "status", "words"),
    [
        ({"wildcards": ["*.example.com"]}, 400, "dns-01 only"),
        ({"challenge": "http-01", "wildcards": ["*.example.com"]}, 400, "dns-01 only"),
        ({"challenge": "dns-01", "wildcards": ["*.example.org"]}, 400, "not within the domains"),
        ({"challenge": "dns-01", "wildcards": ["*.com"]}, 400, "wildcards"),
        ({"challenge": "dns-01", "wildcards": ["www.example.com"]}, 400, "wildcard such as"),
        ({"challenge": "tls-alpn-01"}, 400, "challenge"),
    ],
)
async def test_what_no_authority_would_certify_is_refused(
    panel_database: Database, tmp_path: Path, wish: dict[str, Any], status: int, words: str
) -> None:
    async with Server().core(panel_database, tmp_path) as world:
        refused = await world.issue(**wish)
        shown = await world.shown()

    assert refused.status_code == status
    assert words in refused.text
    assert (shown["state"], shown["challenge"], shown["wildcards"]) == ("active", "http-01", [])


async def test_a_proof_that_nobody_would_find_is_refused_before_anything_is_ordered(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    wish: dict[str, Any] = {"challenge": "dns-01", "wildcards": ["*.example.com"]}
    async with server.core(panel_database, tmp_path) as world:
        ordered = server.orders()
        server.parents.parents = {"example.com": frozenset({"panel.test", "ns.elsewhere.example"})}
        elsewhere = await world.issue(**wish)
        server.parents.parents = {}
        unknown = await world.issue(**wish)
        server.parents.parents = {"example.com": frozenset({"panel.test"})}
        alias = {"name": "_acme-challenge", "data": {"type": "CNAME", "target": "validation.example.net"}}
        made = await world.ada.post(f"/sites/{world.site}/dns/records", alias)
        aliased = await world.issue(**wish)
        await world.ada.delete(f"/sites/{world.site}/dns/records/{made.json()['record']['id']}")
        await panel_database.execute("DELETE FROM dns_zones")
        without_zone = await world.issue(**wish)

        assert server.orders() == ordered

    assert (elsewhere.status_code, unknown.status_code) == (409, 503)
    assert "is delegated to ns.elsewhere.example, panel.test" in elsewhere.text
    assert "panel.test" in elsewhere.json()["error"]["hint"]
    assert aliased.status_code == 409
    assert "is an alias" in aliased.text
    assert without_zone.status_code == 409
    assert "no zone example.com" in without_zone.text


async def test_names_of_a_zone_that_is_delegated_elsewhere_are_left_out(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.authority.verdict = server.found
        server.parents.parents["example.org"] = frozenset({"ns.elsewhere.example"})
        await world.ada.post(f"/sites/{world.site}/domains", {"name": "example.org"})
        ordered = await world.issue(challenge="dns-01", wildcards=["*.example.com"])
        await world.look()
        shown = await world.shown()

    assert ordered.status_code == 200, ordered.text
    assert shown["names"] == ["example.com", "*.example.com"]
    [left] = shown["left_out"]
    assert left["name"] == "example.org"
    assert "is delegated to ns.elsewhere.example" in left["reason"]
    assert "At its registrar name panel.test" in left["reason"]


async def test_an_order_continues_once_the_parent_of_its_zone_answers(panel_database: Database, tmp_path: Path) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.authority.verdict = server.found
        await world.issue(challenge="dns-01", wildcards=["*.example.com"])
        ordered = server.orders()
        parents, server.parents.parents = server.parents.parents, {}
        await world.look()
        away = await world.shown()
        server.parents.parents = parents
        await panel_database.execute("UPDATE acme_certificates SET due_at = now() WHERE name LIKE 'site:%'")
        await world.look()
        shown = await world.shown()

    assert "It is not known whether example.com is delegated" in away["last_error"]
    assert away["left_out"] == []
    assert shown["names"] == ["example.com", "*.example.com"]
    assert server.orders() - ordered == 1


async def test_what_a_core_that_was_killed_has_left_in_the_zone_goes_with_the_next_one(
    panel_database: Database, tmp_path: Path
) -> None:
    server, looking = Server(), trio.Event()

    def hanging() -> httpx.AsyncClient:
        async def answer(request: httpx.Request) -> httpx.Response:
            if "/challenge/" in request.url.path and server.knot.answers(RECORD, "TXT"):
                looking.set()
                await trio.sleep_forever()
            return await server.authority.answer(request)

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    async with server.core(panel_database, tmp_path, hanging) as world, trio.open_nursery() as nursery:
        await world.issue(challenge="dns-01", wildcards=["*.example.com"])
        nursery.start_soon(world.look)
        await looking.wait()
        nursery.cancel_scope.cancel()
    left = server.knot.answers(RECORD, "TXT")
    server.authority.verdict = server.found

    async with server.core(panel_database, tmp_path) as world:
        await world.look()
        names = (await world.shown())["names"]

    assert names == ["example.com", "*.example.com"]
    assert server.knot.answers(RECORD, "TXT") == set()
    assert len(left) == 2
    assert server.orders() == 2, "the order that was under way goes on"


async def test_a_proof_that_does_not_hold_is_told_to_the_owner_once(panel_database: Database, tmp_path: Path) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.authority.verdict = lambda token, name: {
            "type": "urn:ietf:params:acme:error:unauthorized",
            "detail": "Incorrect TXT record found",
        }
        await world.issue(challenge="dns-01", wildcards=["*.example.com"])
        await world.look()
        first = await world.failed_at()
        again = await world.issue(by=world.root)
        await world.look()
        second = await world.failed_at()
        shown = await world.shown()
        events = await panel_database.fetch("SELECT body FROM webhook_events WHERE event = 'ssl.failed'")
        mails = await panel_database.fetch("SELECT recipient, subject FROM mails")
        left = server.knot.answers(RECORD, "TXT")

    assert again.status_code == 200
    assert None not in (first, second)
    assert first != second
    assert left == set()
    assert "Incorrect TXT record" in shown["last_error"]
    assert shown["names"] == ["example.com", "www.example.com"], "what is served stays"
    assert len(events) == 1
    assert [tuple(row) for row in mails] == [("ada@example.com", "No certificate for example.com")]


def test_a_certificate_is_for_names_that_no_wildcard_covers_and_for_no_others_domain() -> None:
    names = SiteNames(
        ("example.com", "www.example.com", "a.b.example.com", "example.org"), ("example.com", "example.org")
    )

    certified = names.certified(["*.example.com", "*.example.net"])

    assert certified == ["example.com", "a.b.example.com", "example.org", "*.example.com"]
    assert chosen_wildcards(["*.bücher.example.org"], SiteNames(("example.org",), ("example.org",))) == [
        "*.xn--bcher-kva.example.org"
    ]
    with pytest.raises(ServiceError):
        chosen_wildcards(["*.badexample.com"], SiteNames(("example.com",), ("example.com",)))


async def test_previews_in_a_zone_of_this_server_get_a_wildcard_of_their_own(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.authority.verdict = server.found
        await world.preview()
        await world.panel.step("preview addresses")
        plain = (await world.ada.get(f"/sites/{world.site}")).json()["preview_url"]

        await world.panel.step("certificate of previews")
        await world.panel.step("preview addresses")
        url = (await world.ada.get(f"/sites/{world.site}")).json()["preview_url"]
        served = preview_certificate(HostFolders(tmp_path))
        left = server.knot.answers("_acme-challenge.previews.example.com", "TXT")
        orders = [order.names for order in server.authority.orders.values()]
        await world.panel.step("certificate of previews")

    async with server.core(panel_database, tmp_path) as world:
        await world.panel.step("preview addresses")
        again = preview_certificate(HostFolders(tmp_path))
        await world.root.patch("/settings", {"preview_domain": "previews.example.net"})
        await world.panel.step("certificate of previews")
        await world.panel.step("preview addresses")
        elsewhere = (await world.ada.get(f"/sites/{world.site}")).json()["preview_url"]

    assert plain.startswith("http://example-com-")
    assert url == plain.replace("http://", "https://")
    assert served is not None
    assert served.domain == "previews.example.com"
    assert again == served
    assert left == frozenset()
    assert orders.count(["*.previews.example.com"]) == 1
    assert len(server.authority.orders) == len(orders), "nothing is ordered again"
    assert elsewhere.startswith("http://")
    assert await panel_database.fetchval("SELECT count(*) FROM acme_certificates WHERE name = 'previews'") == 0


async def test_previews_in_a_zone_that_is_delegated_elsewhere_stay_without_tls(
    panel_database: Database, tmp_path: Path
) -> None:
    server = Server()
    async with server.core(panel_database, tmp_path) as world:
        server.parents.parents["example.com"] = frozenset({"ns.elsewhere.example"})
        await world.preview()

        await world.panel.step("certificate of previews")
        asked = len(server.parents.asked)
        await world.panel.step("certificate of previews")

        url = (await world.ada.get(f"/sites/{world.site}")).json()["preview_url"]
    assert len(server.parents.asked) == asked, "the parent is not asked with every round"
    assert url.startswith("http://example-com-")
    assert all("previews" not in name for order in server.authority.orders.values() for name in order.names)
    assert await panel_database.fetchval("SELECT count(*) FROM alerts WHERE message LIKE '%previews%'") == 0
