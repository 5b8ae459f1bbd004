"""A wildcard certified by Pebble, which finds the proofs by asking the panel's own Knot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from svc_actors.certificates import AcmeSettings
from svc_actors.store import Database
from tests.support.dns import RecordedDelegations
from tests.support.knot import RealKnot, real_knot
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.pebble import Pebble, open_pebble

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@asynccontextmanager
async def panel_of(database: Database, folder: Path, knot: RealKnot, pebble: Pebble) -> AsyncIterator[PanelHarness]:
    acme = AcmeSettings("ops@example.com", (), terms_agreed=True, directory=pebble.directory, roots=pebble.roots)
    parents = RecordedDelegations({"example.com": frozenset({"panel.test"})})
    host = replace(recorded_host(), name_server=knot.server, delegations=parents)
    async with open_panel(database, folder, host, acme=acme, loops=None) as panel:
        yield panel


async def test_an_authority_finds_the_proofs_of_a_wildcard_in_our_own_zone(
    panel_database: Database, tmp_path: Path
) -> None:
    async with (
        real_knot() as knot,
        open_pebble(tmp_path / "pebble", resolver=f"127.0.0.1:{knot.server.settings.port}") as pebble,
        panel_of(panel_database, tmp_path, knot, pebble) as panel,
    ):
        root = await panel.administrator()
        site = (await root.post("/sites", {"domain": "example.com", "type": "static"})).json()
        path = f"/sites/{site['id']}"
        own = {"name": "_acme-challenge", "data": {"type": "TXT", "text": "the customer's"}}
        await root.post(f"{path}/dns/point")
        await root.post(f"{path}/dns/records", own)

        ordered = await root.post(f"{path}/ssl", {"challenge": "dns-01", "wildcards": ["*.example.com"]})
        assert ordered.status_code == 200, ordered.text
        with trio.fail_after(120):
            while (shown := (await root.get(f"{path}/ssl")).json())["state"] != "active":
                await trio.sleep(0.1)  # An authority decides outside of this process.
            while await knot.answers("_acme-challenge.example.com", "TXT") != {'"the customer\'s"'}:
                await trio.sleep(0.1)

        # The previews of all sites have a wildcard of their own, in the same zone.
        await root.patch("/settings", {"preview_domain": "previews.example.com"})
        await panel.step("certificate of previews")
        previewed = (await root.get(path)).json()["preview_url"]

    assert sorted(shown["names"]) == ["*.example.com", "example.com"]
    assert previewed.startswith("https://example-com-")
