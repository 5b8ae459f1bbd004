"""The logs of the server's programs, read over the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.store import Database
from svc_webhost.folders import HostFolders
from svc_webhost.knot.configuration import KnotFolders
from tests.panel.sites.world import world_of


@pytest.mark.parametrize("source", ["web_server", "web_server_output", "name_server", "keeper"])
async def test_an_administrator_reads_what_a_program_logged_and_then_what_is_new(
    panel_database: Database, tmp_path: Path, source: str
) -> None:
    folders = HostFolders(tmp_path)
    log = {
        "web_server": folders.nginx_log,
        "web_server_output": folders.nginx_output,
        "name_server": KnotFolders(folders.knot).log,
        "keeper": folders.keeper_log,
    }[source]
    async with world_of(panel_database, tmp_path) as world:
        nothing = (await world.root.get(f"/server/logs/read?source={source}")).json()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("started\nworker ended\n")
        first = (await world.root.get(f"/server/logs/read?source={source}&q=worker")).json()
        log.write_text("started\nworker ended\nworker started\n")
        then = (await world.root.get(f"/server/logs/read?source={source}&after={first['cursor']}")).json()

    assert nothing["lines"] == []
    assert (first["source"], first["lines"]) == (source, ["worker ended"])
    assert then["lines"] == ["worker started"]


async def test_a_customer_reads_no_log_of_the_server(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        refused = await world.ada.get("/server/logs/read")

    assert refused.json()["error"]["code"] == "forbidden"
