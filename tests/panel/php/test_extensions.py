"""Extensions of PHP: an administrator's, installed and enabled by jobs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from svc_webhost.php import Extension
from svc_webhost.php.extensions import ExtensionState, states
from tests.panel.sites.world import World
from tests.support.panel_php import RecordedExtensions, RecordedPhp


async def changed(world: World, change: str, name: str, version: str = "8.2") -> dict[str, Any]:
    """The job, when it has ended."""
    answer = await world.root.post(f"/php/extensions/{change}", {"version": version, "name": name})
    assert answer.status_code == 200, answer.text
    return await world.job_of(world.root, answer.json())


async def shown(world: World) -> dict[str, str]:
    found = (await world.root.get("/php/extensions?version=8.2")).json()
    return {each["name"]: each["state"] for each in found}


async def test_what_is_installed_is_given_to_the_sites_of_its_version(world: World) -> None:
    php = cast(RecordedPhp, world.panel.host.php)
    new, old = [
        await world.create(f"{name}.example.net", type="php", php_version=version)
        for name, version in (("new", "8.2"), ("old", "7.4"))
    ]

    job = await changed(world, "install", "redis")

    assert job["status"] == "succeeded"
    assert (await shown(world))["redis"] == "enabled"
    assert [pool.restarts for pool in php.of(new["number"])] == [0, 1]
    assert [pool.restarts for pool in php.of(old["number"])] == [0]


async def test_one_is_disabled_and_enabled_again(world: World) -> None:
    disabled = await changed(world, "disable", "opcache")
    between = await shown(world)
    enabled = await changed(world, "enable", "opcache")

    assert disabled["status"] == enabled["status"] == "succeeded"
    assert between["opcache"] == "disabled"
    assert (await shown(world))["opcache"] == "enabled"


async def test_one_that_php_cannot_load_is_disabled_again_and_no_site_is_touched(world: World) -> None:
    php = cast(RecordedPhp, world.panel.host.php)
    cast(RecordedExtensions, world.panel.host.php_extensions).unloadable.add("redis")
    site = await world.create("a.example.net", type="php")

    job = await changed(world, "install", "redis")

    assert job["status"] == "failed"
    assert "Unable to load" in job["error"]["message"]
    assert (await shown(world))["redis"] == "disabled"
    assert [pool.restarts for pool in php.of(site["number"])] == [0]


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [("install", "curl", 409), ("enable", "opcache", 409), ("disable", "curl", 409), ("install", "nothing", 404)],
)
async def test_what_cannot_be_done_to_it_is_refused(world: World, change: str, name: str, status: int) -> None:
    answer = await world.root.post(f"/php/extensions/{change}", {"version": "8.2", "name": name})

    assert answer.status_code == status


async def test_they_are_administrators_alone(world: World) -> None:
    listed = await world.ada.get("/php/extensions")
    installed = await world.ada.post("/php/extensions/install", {"version": "8.2", "name": "redis"})

    assert listed.status_code == installed.status_code == 403


def test_packages_that_are_programs_are_no_extensions_and_what_is_installed_is_not_available() -> None:
    found = states([Extension("curl", enabled=True), Extension("gd", enabled=False)], ["cli", "fpm", "curl", "redis"])

    assert found == {
        "curl": ExtensionState.ENABLED,
        "gd": ExtensionState.DISABLED,
        "redis": ExtensionState.AVAILABLE,
    }
