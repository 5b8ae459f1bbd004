"""What is done in a WordPress: by whom, what is told and recorded of it, and what a site without one answers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from svc_webhost.launcher import Limits
from svc_webhost.wordpress import WordPressError
from tests.panel.sites.world import World
from tests.panel.wordpress.blogs import made, order, played
from tests.support.harness import Client
from tests.support.wordpress import PLUGIN

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("login", {}),
    ("password", {}),
    ("plugins/activate", {"plugin": PLUGIN}),
    ("plugins/deactivate", {"plugin": PLUGIN}),
    ("maintenance", {"maintenance": True}),
]


async def test_it_is_shown_as_it_describes_itself(world: World) -> None:
    site = await made(world, title="Ada's blog")

    shown = (await world.ada.get(f"/sites/{site['id']}/wordpress")).json()

    assert shown["version"] == "6.1.9"
    assert shown["update"] == "6.1.10"
    assert (shown["title"], shown["language"]) == ("Ada's blog", "en_US")
    assert (shown["admin_login"], shown["admin_email"]) == ("ada", "ada@example.com")
    assert shown["url"] == "http://blog.example"
    assert (shown["debug"], shown["maintenance"]) == (False, False)
    assert [plugin["file"] for plugin in shown["plugins"]] == [PLUGIN]
    assert [theme["update"] for theme in shown["themes"]] == ["1.1"]


async def test_its_code_runs_within_the_limits_of_the_site_whatever_it_is_asked(world: World) -> None:
    site = await made(world, by=world.root, owner_email="ada@example.com", memory_mib=256, processes=20)
    path = f"/sites/{site['id']}/wordpress"

    await world.ada.get(path)
    for change, body in CHANGES:
        answer = await world.ada.post(f"{path}/{change}", body)
        assert answer.status_code == 200, answer.text

    asked = {question for _, question in played(world).limits}
    assert asked == {"install", "look", "login_link", "set_password", "switch_plugin"}
    assert set(played(world).limits.values()) == {Limits(None, 256, 20)}


async def test_a_login_link_leads_to_the_site_and_is_recorded_without_it(world: World) -> None:
    site = await made(world)

    answer = await world.ada.post(f"/sites/{site['id']}/wordpress/login", {})

    link = answer.json()
    assert answer.status_code == 200
    assert link["url"] == f"http://blog.example/svc-login-{1:064x}.php"
    assert link["login"] == "ada"
    assert played(world).links == [(site["account"], "ada")]
    [row] = [row for row in await world.panel.audit() if row["operation"] == "wordpress.login"]
    assert (row["outcome"], row["target_name"]) == ("ok", "blog.example")
    assert "svc-login" not in str(row)


async def test_a_link_for_somebody_who_is_not_there_is_refused(world: World) -> None:
    site = await made(world)

    refused = await world.ada.post(f"/sites/{site['id']}/wordpress/login", {"login": "nobody"})

    assert refused.status_code == 400
    assert "nobody" in refused.json()["error"]["message"]
    assert played(world).links == []


async def test_a_password_is_reset_and_shown_once(world: World) -> None:
    site = await made(world)

    told = (await world.ada.post(f"/sites/{site['id']}/wordpress/password", {})).json()

    assert told["login"] == "ada"
    assert len(told["password"]) >= 20
    assert played(world).passwords[site["account"], "ada"] == told["password"]
    assert told["password"] not in str(await world.panel.audit())


async def test_plugins_and_maintenance_are_switched(world: World) -> None:
    site = await made(world)
    path = f"/sites/{site['id']}/wordpress"

    await world.ada.post(f"{path}/plugins/activate", {"plugin": PLUGIN})
    await world.ada.post(f"{path}/maintenance", {"maintenance": True})
    on = (await world.ada.get(path)).json()
    await world.ada.post(f"{path}/plugins/deactivate", {"plugin": PLUGIN})
    await world.ada.post(f"{path}/maintenance", {"maintenance": False})
    off = (await world.ada.get(path)).json()

    assert (on["plugins"][0]["active"], on["maintenance"]) == (True, True)
    assert (off["plugins"][0]["active"], off["maintenance"]) == (False, False)


@pytest.mark.parametrize(
    "plugin", ["../../x.php", "a/../b.php", "-x.php", "a b.php", "x", "a/b/c.php", "x.php\n", "$(id).php", ".x.php"]
)
async def test_what_names_no_plugin_is_refused(world: World, plugin: str) -> None:
    site = await made(world)

    refused = await world.ada.post(f"/sites/{site['id']}/wordpress/plugins/activate", {"plugin": plugin})

    assert refused.status_code == 400
    assert played(world).active == set()


@pytest.mark.parametrize("login", ["", "-x", "a\nb", "$(id)", "x" * 61, "a'b", "<script>"])
async def test_what_names_no_user_is_refused(world: World, login: str) -> None:
    site = await made(world)

    for what in ("login", "password"):
        assert (await world.ada.post(f"/sites/{site['id']}/wordpress/{what}", {"login": login})).status_code == 400


async def test_every_change_is_audited_once_and_the_site_of_the_path_is_meant(world: World) -> None:
    site = await made(world)
    before = len(await world.panel.audit())

    for what, body in CHANGES:
        answer = await world.ada.post(f"/sites/{site['id']}/wordpress/{what}", {**body, "site_id": str(uuid4())})
        assert answer.status_code == 200, answer.text

    rows = (await world.panel.audit())[before:]
    assert [row["operation"] for row in rows] == [
        "wordpress.login",
        "wordpress.reset_password",
        "wordpress.activate_plugin",
        "wordpress.deactivate_plugin",
        "wordpress.maintenance",
    ]
    assert {row["target_name"] for row in rows} == {"blog.example"}


async def test_nobody_else_sees_it_or_gets_into_it(world: World) -> None:
    site = await made(world)
    reader = world.panel.program(await world.panel.token(world.ada_id, ("read",)))

    async def statuses(client: Client, site_id: str) -> set[int]:
        answers = [await client.get(f"/sites/{site_id}/wordpress")]
        answers += [await client.post(f"/sites/{site_id}/wordpress/{what}", body) for what, body in CHANGES]
        return {answer.status_code for answer in answers}

    assert await statuses(world.bob, site["id"]) == {404}
    assert await statuses(world.root, str(uuid4())) == {404}
    assert (await reader.get(f"/sites/{site['id']}/wordpress")).status_code == 200
    assert (await reader.post(f"/sites/{site['id']}/wordpress/login", {})).status_code == 403
    assert (await reader.post(f"/sites/{site['id']}/wordpress/password", {})).status_code == 403
    assert played(world).links == []


async def test_a_site_that_has_none_or_is_suspended_is_not_asked(world: World) -> None:
    static = await world.create("static.example")
    site = await made(world)
    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "on holiday"})

    for each in (static, site):
        assert (await world.ada.get(f"/sites/{each['id']}/wordpress")).status_code == 409
        for what, body in CHANGES:
            answer = await world.ada.post(f"/sites/{each['id']}/wordpress/{what}", body)
            assert answer.status_code == 409, what


async def test_one_that_does_not_answer_is_unavailable_and_says_why(world: World) -> None:
    site = await made(world)

    async def fail(step: str) -> None:
        raise WordPressError("Error establishing a database connection")

    played(world).before = fail

    answer = await world.ada.get(f"/sites/{site['id']}/wordpress")

    assert answer.status_code == 503
    assert "database connection" in answer.json()["error"]["message"]


async def test_its_administrator_is_called_as_the_address_begins(world: World) -> None:
    ordered = await order(world, admin_email="Grace.Hopper+blog@example.com")

    assert ordered["status"] == "creating"
    row = await world.panel.database.fetchrow("SELECT admin_login, admin_email FROM wordpress_sites")
    assert row is not None
    assert (row["admin_login"], row["admin_email"]) == ("grace.hopperblog", "grace.hopper+blog@example.com")
