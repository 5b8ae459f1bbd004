"""Who sees which sites."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

from svc_actors.store import Database
from tests.support.panel import open_panel
from tests.support.panel_sites import site_row


async def test_a_customer_sees_their_own_sites_and_an_administrator_all(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        ada, bob = await panel.person("ada@example.com"), await panel.person("bob@example.com")
        hers = await site_row(panel.database, ada, "ada.example")
        his = await site_row(panel.database, bob, "bob.example", status="failed")
        customer = panel.program(await panel.token(ada))
        administrator = await panel.administrator()

        seen = (await customer.get("/sites")).json()
        everything = (await administrator.get("/sites?sort=-domain")).json()
        failed = (await administrator.get("/sites?status=failed")).json()
        found = (await administrator.get("/sites?q=ada@")).json()
        own = await customer.get(f"/sites/{hers}")
        foreign = await customer.get(f"/sites/{his}")
        absent = await customer.get(f"/sites/{uuid4()}")
        shown = await administrator.get(f"/sites/{his}")

    assert [site["domain"] for site in seen["items"]] == ["ada.example"]
    assert [site["domain"] for site in everything["items"]] == ["bob.example", "ada.example"]
    assert [site["domain"] for site in failed["items"]] == ["bob.example"]
    assert [site["domain"] for site in found["items"]] == ["ada.example"]
    assert own.json()["account"] == f"s{own.json()['number']}"
    assert own.json()["number"] >= 1001
    assert own.json()["owner_email"] == "ada@example.com"
    assert foreign.status_code == absent.status_code == 404
    assert foreign.json() == absent.json()
    assert shown.status_code == 200


async def test_a_site_is_searched_for_in_its_own_letters_and_in_those_of_the_dns(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.person("ada@example.com")
        await site_row(panel.database, ada, "www.xn--mller-shop-9db.example", registrable="xn--mller-shop-9db.example")
        await site_row(panel.database, ada, "other.example")
        customer = panel.program(await panel.token(ada))

        for text in ("müller-shop", "Müller-Shop.example", "www.müller-shop", "xn--mller", "shop"):
            found = (await customer.get(f"/sites?{urlencode({'q': text})}")).json()["items"]
            assert [site["domain"] for site in found] == ["www.xn--mller-shop-9db.example"], text
        none = (await customer.get(f"/sites?{urlencode({'q': '☃ ☃'})}")).json()["items"]

    assert none == []
