"""Archives of other hosts become sites: every format gives the same, and nothing of it is silent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.panel.imports.world import World
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, MAIN, Tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")

FORMATS: dict[str, Callable[[dict[str, Tree]], bytes]] = {
    "cpanel": foreign.cpanel,
    "hestia": foreign.hestia,
    "virtualmin": foreign.virtualmin,
    "plesk": foreign.plesk,
    "tree": foreign.by_hand,
}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("format", FORMATS)
async def test_each_format_gives_the_same_site_byte_for_byte(world: World, format: str) -> None:
    trees = foreign.model()
    imported = await world.uploaded(FORMATS[format](trees))

    job = await world.applied(imported)
    site = await world.site(MAIN)
    public = world.home(site) / "public"
    placed = files_of(public)
    configuration = placed.pop("wp-config.php").decode()

    assert imported["format"] == format
    assert job["status"] == "succeeded", job
    assert (await world.shown(imported))["status"] == "applied"
    assert (site["type"], site["status"]) == ("wordpress", "active")
    for path, content in trees[MAIN].files.items():
        assert path == "wp-config.php" or placed[path] == content
    assert os.readlink(public / "latest") == "wp-content/uploads"
    assert os.readlink(public / "wp-content/uploads/up.png") == "bild_1.png"
    assert f"define('DB_NAME', 's{site['number']}_wordpress');" in configuration
    assert "it\\'s" not in configuration
    assert {world.mariadb.contents[name] for name in world.mariadb.contents} == {foreign.DUMP}
    assert not (world.home(site) / "private/.svc-import").exists()
    if format != "tree":
        addon = world.home(await world.site(ADDON)) / "public"
        assert files_of(addon) == trees[ADDON].files
        assert not (public / "addon").exists()


async def test_a_user_who_could_only_read_a_database_can_only_read_it_here(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))

    await world.applied(imported)

    number = (await world.site(MAIN))["number"]
    users = (await world.root.get("/database-users")).json()["items"]
    assert {user["name"]: [grant["access"] for grant in user["grants"]] for user in users} == {
        f"s{number}_wordpress": ["full"],
        f"s{number}_wordpress_ro": ["read_only"],
    }
