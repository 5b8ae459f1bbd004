"""What the owner of a site keeps from visitors: the record, what the web server is told, and who may say it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from svc_actors.panel.backups.configuration import LISTS, StoredFrontController
from svc_actors.panel.sites.denied_paths import MOST_DENIED
from svc_actors.panel.sites.protected_paths import MOST_LOGINS
from svc_actors.panel.sites.records import lock_site
from svc_actors.store import Database
from tests.panel.sites.world import world_of

PASSWORD = "correct-horse-battery"


async def test_denied_paths_are_served_so_and_shown_again(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        path = f"/sites/{site['id']}/denied-paths"

        made = await world.ada.post(path, {"pattern": "/uploads/**/*.php"})
        again = await world.ada.post(path, {"pattern": "/uploads/**/*.php"})
        await world.ada.post(path, {"pattern": "debug.log"})
        served = world.served("a.example")
        listed = (await world.ada.get(path)).json()
        gone = await world.ada.delete(f"/denied-paths/{made.json()['id']}", {})
        after = world.served("a.example")

    assert (made.status_code, again.status_code, gone.status_code) == (201, 409, 200)
    assert served is not None
    assert served.denied == ("/uploads/**/*.php", "debug.log")
    assert [each["pattern"] for each in listed] == ["/uploads/**/*.php", "debug.log"]
    assert after is not None
    assert after.denied == ("debug.log",)


@pytest.mark.parametrize("pattern", ["", "*", "/", "a/b", "a*b", "/a b", '/a"', "/$uri", "/a;", "x" * 256, "/../*x*"])
async def test_what_is_no_pattern_denies_nothing(panel_database: Database, tmp_path: Path, pattern: str) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        before = len(world.web.applied)

        answer = await world.ada.post(f"/sites/{site['id']}/denied-paths", {"pattern": pattern})

    assert answer.status_code == 400
    assert len(world.web.applied) == before


async def test_a_site_has_so_many_denied_paths_and_no_more(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        await panel_database.execute(
            "INSERT INTO site_denied_paths (site_id, pattern) SELECT $1, '/' || n FROM generate_series(1, $2) AS n",
            *(site["id"], MOST_DENIED),
        )

        answer = await world.ada.post(f"/sites/{site['id']}/denied-paths", {"pattern": "/more"})

    assert answer.status_code == 409


async def test_a_path_asks_for_the_passwords_of_its_logins(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        path = f"/sites/{site['id']}/protected-paths"

        made = (await world.ada.post(path, {"path": "/members", "login": "ada"})).json()
        again = await world.ada.post(path, {"path": "/members", "login": "bob"})
        logins = f"/protected-paths/{made['id']}/logins"
        chosen = (await world.ada.post(logins, {"login": "bob", "password": PASSWORD})).json()
        served = world.served("a.example")
        listed = (await world.ada.get(path)).json()
        renewed = (await world.ada.post(logins, {"login": "ada"})).json()
        removed = await world.ada.delete(logins, {"login": "bob"})
        absent = await world.ada.delete(logins, {"login": "bob"})
        last = await world.ada.delete(logins, {"login": "ada"})
        left = world.served("a.example")
        gone = await world.ada.delete(f"/protected-paths/{made['id']}", {})
        after = world.served("a.example")

    assert again.status_code == 409
    assert chosen["password"] is None
    assert served is not None
    [protected] = served.protected
    assert protected.path == "/members"
    first, second = protected.logins
    assert (first.login, second.login) == ("ada", "bob")
    assert first.verifier[:3] == second.verifier[:3] == "$6$"
    assert [(each["path"], each["logins"]) for each in listed] == [("/members", ["ada", "bob"])]
    assert made["password"] not in str(listed)
    assert (removed.status_code, absent.status_code, last.status_code) == (200, 404, 409)
    assert left is not None
    [only] = left.protected[0].logins
    assert renewed["password"] != made["password"]
    assert only.verifier != first.verifier
    assert gone.status_code == 200
    assert after is not None
    assert after.protected == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "members"},
        {"path": "/members/"},
        {"path": '/a"'},
        {"path": "/$uri"},
        {"login": "a:b"},
        {"login": "a\nb"},
        {"login": ""},
        {"password": "short"},
        {"password": "with blanks in it"},
    ],
    ids=str,
)
async def test_what_is_no_path_or_login_protects_nothing(
    panel_database: Database, tmp_path: Path, wrong: dict[str, str]
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        before = len(world.web.applied)

        body = {"path": "/members", "login": "ada", "password": PASSWORD, **wrong}
        answer = await world.ada.post(f"/sites/{site['id']}/protected-paths", body)

    assert answer.status_code == 400
    assert len(world.web.applied) == before


async def test_a_path_has_so_many_logins_and_no_more(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        made = (await world.ada.post(f"/sites/{site['id']}/protected-paths", {"path": "/x", "login": "ada"})).json()
        await panel_database.execute(
            """INSERT INTO site_path_logins (protected_id, login, verifier)
               SELECT $1, 'user' || n, '$6$salt$verifier' FROM generate_series(2, $2) AS n""",
            *(made["id"], MOST_LOGINS),
        )
        logins = f"/protected-paths/{made['id']}/logins"

        more = await world.ada.post(logins, {"login": "more"})
        known = await world.ada.post(logins, {"login": "ada"})

    assert (more.status_code, known.status_code) == (409, 200)


async def test_the_audit_says_who_is_let_in_and_no_password(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        made = (
            await world.ada.post(
                f"/sites/{site['id']}/protected-paths", {"path": "/x", "login": "ada", "password": PASSWORD}
            )
        ).json()
        told = await panel_database.fetchone("SELECT * FROM audit WHERE operation = 'protected_path.create'")

    assert (str(told["target_id"]), told["target_name"]) == (made["id"], "/x")
    assert "ada" in str(dict(told))
    assert PASSWORD not in str(dict(told))


async def test_front_controllers_are_served_so_and_shown_again(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example", type="php")
        path = f"/sites/{site['id']}/front-controllers"

        made = await world.ada.post(path, {"path": "/blog/", "php_file": "/blog/index.php"})
        again = await world.ada.post(path, {"path": "/blog/", "php_file": "/other.php"})
        both = await world.ada.post(path, {"path": "/", "php_file": "/a.php", "path_info": True, "parameter": "id"})
        circle = await world.ada.post(path, {"path": "/x", "php_file": "/x/a.php", "serves_files": False})
        await world.ada.post(path, {"path": "/", "php_file": "/doku.php", "parameter": "id"})
        served = world.served("a.example")
        listed = (await world.ada.get(path)).json()
        gone = await world.ada.delete(f"/front-controllers/{made.json()['id']}", {})
        after = world.served("a.example")

    assert (made.status_code, again.status_code, gone.status_code) == (201, 409, 200)
    assert (both.status_code, circle.status_code) == (400, 400)
    assert served is not None
    assert [(each.path, each.php_file, each.parameter) for each in served.front_controllers] == [
        ("/", "/doku.php", "id"),
        ("/blog/", "/blog/index.php", None),
    ]
    assert [each["path"] for each in listed] == ["/", "/blog/"]
    assert after is not None
    assert [each.path for each in after.front_controllers] == ["/"]


async def test_a_site_without_php_has_no_front_controller(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")

        answer = await world.ada.post(
            f"/sites/{site['id']}/front-controllers", {"path": "/blog/", "php_file": "/blog/index.php"}
        )

    assert answer.status_code == 400


async def test_a_front_controller_comes_back_from_a_backup(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example", type="php")
        path = f"/sites/{site['id']}/front-controllers"
        await world.ada.post(path, {"path": "/blog/", "php_file": "/blog/index.php"})
        await world.ada.post(path, {"path": "/wiki/", "php_file": "/wiki.php", "parameter": "id"})
        stored = [
            StoredFrontController.model_validate(row[0])
            for each in LISTS
            if each.entry is StoredFrontController
            for row in await panel_database.fetch(each.query, UUID(site["id"]))
        ]
        await panel_database.execute("DELETE FROM site_front_controllers WHERE path = '/blog/'")
        await panel_database.execute("UPDATE site_front_controllers SET php_file = '/other.php'")

        async with panel_database.transaction() as tx:
            row = await lock_site(tx, UUID(site["id"]))
            for each in stored:
                await each.put_back(tx, row)
        listed = (await world.ada.get(path)).json()

    assert [(each["path"], each["php_file"], each["parameter"]) for each in listed] == [
        ("/blog/", "/blog/index.php", None),
        ("/wiki/", "/wiki.php", "id"),
    ]
