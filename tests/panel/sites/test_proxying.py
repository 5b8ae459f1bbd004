"""What a site of the type proxy may be served from."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.panel.sites.world import World
from tests.panel.webhooks.test_outbound import NOT_PUBLIC, REFUSED_URLS


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:8000",
        "http://[::1]",
        "http://10.1.2.3",
        "http://169.254.169.254",
        "http://[::ffff:127.0.0.1]",
        "http://[fd00::1]",
        "http://100.64.0.1",
        "http://0.0.0.0",
        "http://localhost",
    ],
)
async def test_a_customer_is_no_proxy_of_what_is_not_public(world: World, target: str) -> None:
    refused = await world.ada.post("/sites", {"domain": "p.example", "type": "proxy", "proxy_target": target})
    allowed = await world.root.post("/sites", {"domain": "p.example", "type": "proxy", "proxy_target": target})

    assert refused.status_code == 400
    assert allowed.status_code in (201, 400, 503)
    assert (await world.ada.get("/sites")).json()["total"] == 0


async def test_a_proxy_is_served_from_the_addresses_that_were_looked_at(world: World) -> None:
    site = await world.create("p.example", type="proxy", proxy_target="https://1.1.1.1:8443")
    changed = await world.ada.patch(f"/sites/{site['id']}", {"proxy_target": "http://9.9.9.9"})
    inner = await world.ada.patch(f"/sites/{site['id']}", {"proxy_target": "http://127.0.0.1"})

    server = world.served("p.example")
    assert changed.status_code == 200
    assert inner.status_code == 400
    assert server is not None
    assert server.serves.model_dump(mode="json") == {
        "kind": "proxy",
        "host": "9.9.9.9",
        "port": 80,
        "addresses": ["9.9.9.9"],
        "tls": False,
    }


@pytest.mark.parametrize(
    "body",
    [
        {"type": "proxy"},
        {"type": "static", "proxy_target": "http://1.1.1.1"},
        {"type": "proxy", "proxy_target": "x"},
        {"type": "proxy", "proxy_target": "http://a:b@1.1.1.1"},
        {"type": "proxy", "proxy_target": "http://1.1.1.1/path"},
        {"type": "proxy", "proxy_target": "http://1.1.1.1:99999"},
    ],
)
async def test_a_proxy_and_nothing_else_has_a_target(world: World, body: dict[str, Any]) -> None:
    assert (await world.ada.post("/sites", {"domain": "p.example", **body})).status_code == 400


async def test_no_way_to_write_an_address_makes_a_customer_a_proxy_of_what_is_not_public(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever name is left to be resolved leads to this server."""

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["8.8.8.8", "127.0.0.1"]

    monkeypatch.setattr("svc_actors.panel.sites.proxying.resolve", resolve)
    written = [f"http://[{text}]" if ":" in text else f"http://{text}" for text in NOT_PUBLIC]
    site = await world.create("p.example", type="proxy", proxy_target="https://1.1.1.1")

    taken = []
    for target in [*REFUSED_URLS, *written]:
        made = await world.ada.post("/sites", {"domain": "q.example", "type": "proxy", "proxy_target": target})
        changed = await world.ada.patch(f"/sites/{site['id']}", {"proxy_target": target})
        if (made.status_code, changed.status_code) != (400, 400):
            taken.append((target, made.text, changed.text))

    assert len([*REFUSED_URLS, *written]) > 80
    assert taken == []
