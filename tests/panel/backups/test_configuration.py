"""The configuration of a site in its backups: shown before it is put back, put back, and nothing taken from anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel import host_work
from svc_actors.panel.apps.variables import MOST_VARIABLES, open_variables
from svc_actors.panel.backups import Places
from svc_actors.panel.sites.denied_paths import MOST_DENIED
from svc_actors.panel.sites.redirects import MOST_REDIRECTS
from svc_webhost.accepted import is_denied
from tests.support.certificates import self_signed
from tests.support.panel_sites import site_row
from tests.support.restic import RecordedRestic
from tests.support.served import RecordedServing
from tests.support.site_backups import Backed
from tests.support.site_files import give

PARTS = {"parts": ["configuration"]}
SETTINGS: dict[str, object] = {
    "force_https": True,
    "fallback_page": "/index.html",
    "cache_assets": True,
    "utf8_pages": True,
}


@pytest.fixture
async def configured(world: Backed, tmp_path: Path) -> Backed:
    """The site has names, redirects, records, a task and a certificate of its own."""
    folder = tmp_path / "certificate"
    folder.mkdir()
    files = self_signed(folder, ["ada.example.com"])
    site = f"/sites/{world.site}"
    for method, path, body in [
        ("POST", f"{site}/domains", {"name": "shop.example.org"}),
        ("POST", f"{site}/domains", {"name": "www.shop.example.org", "redirect_to_primary": True}),
        ("POST", f"{site}/redirects", {"path": "/old", "target": "/new", "status": 308}),
        ("POST", f"{site}/denied-paths", {"pattern": "*.bak"}),
        ("POST", f"{site}/protected-paths", {"path": "/members", "login": "bob"}),
        ("POST", f"{site}/dns/records", _record("www", address="192.0.2.1")),
        ("POST", f"{site}/dns/records", _record("mail", address="192.0.2.2")),
        ("POST", f"{site}/schedules", {"name": "nightly", "kind": "url", "path": "/tasks", "cron": "0 3 * * *"}),
        ("PUT", f"{site}/ssl", {"certificate": files.certificate.read_text(), "key": files.key.read_text()}),
        ("PATCH", site, SETTINGS),
    ]:
        answer = await world.ada.call(method, path, body)
        assert answer.status_code < 300, answer.text
    return world


def _record(name: str, address: str) -> dict[str, Any]:
    return {"zone": "example.org", "name": name, "data": {"type": "A", "address": address}}


async def state(world: Backed) -> dict[str, Any]:
    """What a customer sees of it all, without ids and times."""
    site = f"/sites/{world.site}"
    found: dict[str, Any] = {}
    for name, path in {
        "domains": f"{site}/domains",
        "redirects": f"{site}/redirects",
        "denied": f"{site}/denied-paths",
        "protected": f"{site}/protected-paths",
        "records": f"{site}/dns?zone=example.org",
        "tasks": f"{site}/schedules",
        "certificate": f"{site}/ssl",
        "site": site,
    }.items():
        answer = await world.ada.get(path)
        assert answer.status_code == 200, answer.text
        found[name] = answer.json()
    found["records"] = sorted((each["name"], each["ttl"], str(each["data"])) for each in found["records"]["records"])
    found["certificate"] = {name: found["certificate"][name] for name in ("source", "fingerprint")}
    found["site"] = {name: found["site"][name] for name in SETTINGS}
    for name in ("domains", "redirects", "denied", "protected", "tasks"):
        items = found[name]["items"] if isinstance(found[name], dict) else found[name]
        found[name] = [{k: v for k, v in each.items() if k not in ("id", "created_at")} for each in items]
    return found


async def forgotten(world: Backed) -> None:
    """All of it is taken away."""
    site = f"/sites/{world.site}"
    await world.ada.delete(f"{site}/ssl")
    for record in (await world.ada.get(f"{site}/dns?zone=example.org")).json()["records"]:
        await world.ada.delete(f"{site}/dns/records/{record['id']}")
    for kind in ("redirects", "denied-paths", "protected-paths", "schedules"):
        for each in (await world.ada.get(f"{site}/{kind}")).json():
            assert (await world.ada.delete(f"/{kind}/{each['id']}")).status_code < 300
    await world.ada.call("PATCH", site, dict.fromkeys(SETTINGS, False) | {"fallback_page": None})
    for each in (await world.ada.get(f"{site}/domains")).json():
        if not each["primary"]:
            await world.ada.delete(f"/domains/{each['id']}")


async def test_what_was_deleted_is_shown_and_comes_back_and_is_then_as_it_was(configured: Backed) -> None:
    world = configured
    before = await state(world)
    backup = await world.backup()
    path = f"/backups/{backup['id']}/configuration"
    unchanged = (await world.ada.get(path)).json()
    await forgotten(world)

    shown = (await world.ada.get(path)).json()
    job = await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    again = (await world.ada.get(path)).json()

    assert unchanged == []
    assert [(each["part"], each["name"], each["action"]) for each in shown] == [
        ("name", "shop.example.org", "add"),
        ("name", "www.shop.example.org", "add"),
        ("redirect", "/old", "add"),
        ("denied_path", "*.bak", "add"),
        ("protected_path", "/members", "add"),
        ("task", "nightly", "add"),
        ("https", "ada.example.com", "change"),
        ("fallback_page", "ada.example.com", "change"),
        ("cache_assets", "ada.example.com", "change"),
        ("utf8_pages", "ada.example.com", "change"),
        ("record", "mail.example.org", "add"),
        ("record", "www.example.org", "add"),
        ("certificate", "ada.example.com", "add"),
    ]
    assert job["steps"][-1]["name"] == "configure"
    assert await state(world) == before
    assert again == []


async def test_a_backup_from_before_the_settings_of_files_leaves_them_as_they_are(configured: Backed) -> None:
    world = configured
    backup = await world.backup()
    await world.panel.database.execute(
        """UPDATE site_backups SET configuration = configuration
           #- '{site,0,fallback_page}' #- '{site,0,cache_assets}' #- '{site,0,utf8_pages}'"""
    )
    changed = {"fallback_page": "/other.html", "cache_assets": False, "utf8_pages": False}
    await world.ada.call("PATCH", f"/sites/{world.site}", changed)

    assert (await world.ada.get(f"/backups/{backup['id']}/configuration")).json() == []


class Visitor(trio.abc.Instrument):
    """Looks after each step of any task whether a visitor would get a file that the backup's site refuses."""

    def __init__(self, world: Backed, path: str) -> None:
        self._web = world.panel.host.web
        self._file, self._path = world.home.path / "public" / path[1:], path
        self.leaks = self.looks = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        assert isinstance(self._web, RecordedServing)
        self.looks += 1
        if self._file.exists():
            [site] = [site for site in self._web.sites.values() if site.domain == "ada.example.com"]
            closed = any(is_denied(pattern, self._path) for pattern in site.denied)
            closed = closed or any(self._path.startswith(f"{each.path}/") for each in site.protected)
            self.leaks += not closed


@pytest.mark.parametrize("path", ["/dump.sql.bak", "/members/list.txt"])
async def test_no_file_comes_back_before_what_keeps_visitors_from_it(configured: Backed, path: str) -> None:
    world = configured
    file = give(world.home, f"public{path}", b"for no visitor")
    backup = await world.backup()
    file.unlink()
    await forgotten(world)
    visitor = Visitor(world, path)

    trio.lowlevel.add_instrument(visitor)
    job = await world.done(
        await world.ada.post(f"/backups/{backup['id']}/restore", {"parts": ["files", "configuration"]})
    )
    trio.lowlevel.remove_instrument(visitor)

    assert job["status"] == "succeeded"
    assert file.read_bytes() == b"for no visitor"
    assert visitor.looks > 0
    assert visitor.leaks == 0


async def test_a_restoration_waits_for_a_server_that_takes_longer_than_an_operation_waits(
    configured: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = configured
    before = await state(world)
    backup = await world.backup()
    await forgotten(world)

    with monkeypatch.context() as patched:
        # Whatever it does takes longer.
        patched.setattr(host_work, "HOST_PATIENCE", 0.0)
        job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))

    assert job["status"] == "succeeded", job
    assert await state(world) == before


async def test_files_stay_away_while_the_web_server_has_not_taken_what_keeps_visitors_out(configured: Backed) -> None:
    world = configured
    web = world.panel.host.web
    assert isinstance(web, RecordedServing)
    file = give(world.home, "public/dump.sql.bak", b"for no visitor")
    backup = await world.backup()
    file.unlink()
    await forgotten(world)
    order = {"parts": ["files", "configuration"]}

    web.down = "nginx is gone"
    jobs = [await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", order)) for _ in range(2)]

    assert [job["status"] for job in jobs] == ["failed", "failed"]
    assert all("the web server has not applied" in job["error"]["message"] for job in jobs), jobs
    assert not file.exists()


async def test_files_stay_away_while_the_site_has_no_room_for_what_keeps_visitors_out(configured: Backed) -> None:
    world = configured
    file = give(world.home, "public/dump.sql.bak", b"for no visitor")
    backup = await world.backup()
    file.unlink()
    await forgotten(world)
    await world.panel.database.execute(
        """INSERT INTO site_denied_paths (site_id, pattern)
           SELECT $1, '/later-' || number FROM generate_series(1, $2::int) AS number""",
        world.site,
        MOST_DENIED,
    )
    order = {"parts": ["files", "configuration"]}

    refused = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", order))
    before = file.exists()
    await world.panel.database.execute("DELETE FROM site_denied_paths WHERE pattern = '/later-1'")
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", order))

    assert (refused["status"], refused["error"]["code"]) == ("failed", "conflict"), refused
    assert "denied_path *.bak: left out, a site has at most" in refused["error"]["message"]
    assert not before
    assert file.read_bytes() == b"for no visitor"


async def test_what_was_changed_is_changed_back_and_what_was_added_since_stays(configured: Backed) -> None:
    world = configured
    backup = await world.backup()
    site = f"/sites/{world.site}"
    before = await state(world)
    records = (await world.ada.get(f"{site}/dns?zone=example.org")).json()["records"]
    www = next(each for each in records if each["name"] == "www.example.org")
    await world.ada.call(
        "PATCH", f"{site}/dns/records/{www['id']}", {"data": {"type": "CNAME", "target": "elsewhere.example.net"}}
    )
    await world.ada.post(f"{site}/dns/records", _record("later", address="192.0.2.9"))
    (task,) = (await world.ada.get(f"{site}/schedules")).json()
    await world.ada.call("PATCH", f"/schedules/{task['id']}", {"cron": "0 4 * * *"})
    await world.ada.post(f"{site}/redirects", {"path": "/later", "target": "/here"})

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    after = await state(world)

    assert after["tasks"] == before["tasks"]
    assert set(before["records"]) < set(after["records"])
    assert [name for name, _, _ in sorted(set(after["records"]) - set(before["records"]))] == ["later.example.org"]
    assert [each["path"] for each in after["redirects"]] == ["/later", "/old"]


async def test_a_login_comes_back_with_the_password_that_it_had_and_one_that_came_since_stays(
    configured: Backed,
) -> None:
    world = configured
    had = await _verifiers(world)
    backup = await world.backup()
    [protected] = (await world.ada.get(f"/sites/{world.site}/protected-paths")).json()
    for login in ("bob", "eve"):
        await world.ada.post(f"/protected-paths/{protected['id']}/logins", {"login": login})
    since = await _verifiers(world)

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))

    assert since["bob"] != had["bob"]
    assert await _verifiers(world) == {"bob": had["bob"], "eve": since["eve"]}


async def _verifiers(world: Backed) -> dict[str, str]:
    rows = await world.panel.database.fetch("SELECT login, verifier FROM site_path_logins")
    return {row["login"]: row["verifier"] for row in rows}


async def test_a_path_and_what_is_below_it_are_two_redirects(world: Backed) -> None:
    site = f"/sites/{world.site}"
    for redirect in ({"path": "/old", "target": "/new"}, {"path": "/old", "target": "/archive", "below": True}):
        assert (await world.ada.post(f"{site}/redirects", redirect)).status_code == 201
    exact, below = (await world.ada.get(f"{site}/redirects")).json()
    backup = await world.backup()
    await world.ada.delete(f"/redirects/{below['id']}")

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    after = (await world.ada.get(f"{site}/redirects")).json()

    assert [(each["name"], each["action"]) for each in shown] == [("/old and below", "add")]
    assert after[0] == exact
    assert [(each["path"], each["target"], each["below"]) for each in after[1:]] == [("/old", "/archive", True)]


async def test_a_redirect_without_room_is_left_out_and_the_one_of_the_same_path_comes_back(world: Backed) -> None:
    site = f"/sites/{world.site}"
    for redirect in ({"path": "/old", "target": "/new"}, {"path": "/old", "target": "/archive", "below": True}):
        await world.ada.post(f"{site}/redirects", redirect)
    backup = await world.backup()
    for redirect in (await world.ada.get(f"{site}/redirects")).json():
        await world.ada.delete(f"/redirects/{redirect['id']}")
    await world.panel.database.execute(
        """INSERT INTO site_redirects (site_id, path, target, status, below)
           SELECT $1, '/later-' || number, '/', 301, false FROM generate_series(1, $2::int) AS number""",
        world.site,
        MOST_REDIRECTS - 1,
    )

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    after = (await world.ada.get(f"{site}/redirects")).json()

    assert [(each["name"], each["action"]) for each in shown] == [("/old", "add"), ("/old and below", "leave_out")]
    assert [each["target"] for each in after if each["path"] == "/old"] == ["/new"]


async def test_a_name_that_belongs_to_somebody_else_by_now_is_left_out_and_said(configured: Backed) -> None:
    world = configured
    backup = await world.backup()
    await forgotten(world)
    bob = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'bob@example.com'")
    await site_row(world.panel.database, bob, "shop.example.org", registrable="example.org")

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    job = await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    lines = [line["message"] for line in (await world.ada.get(f"/jobs/{job['id']}/log")).json()]
    names = await world.panel.database.fetch("SELECT name FROM site_domains WHERE site_id = $1", world.site)

    left_out = {each["name"]: each["detail"] for each in shown if each["action"] == "leave_out"}
    assert left_out == {
        "shop.example.org": "it is now a name of another site",
        "www.shop.example.org": "another customer now has a name of example.org",
        "example.org": "the site has no name of this domain",
    }
    assert "name shop.example.org: left out, it is now a name of another site" in lines
    assert [row["name"] for row in names] == ["ada.example.com"]
    assert not await world.panel.database.fetchval("SELECT count(*) FROM dns_records WHERE zone = 'example.org'")


async def test_the_key_of_a_certificate_is_in_the_snapshot_alone(
    configured: Backed, restic: RecordedRestic, tmp_path: Path
) -> None:
    world = configured
    key = (tmp_path / "certificate" / "key.pem").read_text().splitlines()[1]
    backup = await world.backup()

    shown = await world.ada.get(f"/backups/{backup['id']}/configuration")
    foreign = await world.bob.get(f"/backups/{backup['id']}/configuration")
    told = await world.panel.database.fetchval("SELECT configuration::text FROM site_backups")

    (tree,) = restic.trees.values()
    assert key in json.loads(tree["content"]["content/configuration.json"])["certificate"]["key"]
    assert key not in told
    assert key not in shown.text
    assert foreign.status_code == 404


async def test_parts_are_chosen_and_never_none_of_them(world: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = await world.backup()
    before = world.tree()
    path = f"/backups/{backup['id']}/restore"
    (world.home.path / "public" / "index.html").write_bytes(b"defaced")
    monkeypatch.setattr(Places, "free_bytes", lambda places: 1 << 40)

    refused = [
        await world.ada.post(path, {"parts": []}),
        await world.ada.post(path, {"parts": ["everything"]}),
        await world.ada.post(path, {"parts": ["files"], "path": "public"}),
    ]
    await world.done(await world.ada.post(path, PARTS))
    defaced = (world.home.path / "public" / "index.html").read_bytes()
    await world.done(await world.ada.post(path, {"parts": ["files"]}))

    assert [answer.status_code for answer in refused] == [400] * 3
    assert defaced == b"defaced"
    assert world.tree() == before


async def test_an_application_gets_its_settings_and_variables_back_and_keeps_later_ones(
    world: Backed, restic: RecordedRestic
) -> None:
    await _becomes_an_app(world)
    site = f"/sites/{world.site}"
    await world.ada.call("PUT", f"{site}/env", {"variables": {"SECRET": "horse battery", "DEBUG": "0", "SAME": "1"}})
    backup = await world.backup()
    await world.ada.call("PATCH", f"{site}/app", {"entry": "other:application"})
    await world.ada.call("PUT", f"{site}/env", {"variables": {"DEBUG": "1", "SAME": "1", "LATER": "2"}})

    shown = await world.ada.get(f"/backups/{backup['id']}/configuration")
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    again = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    after = await open_variables(world.panel.database, world.panel.services.sealer, world.site)
    recorded = await world.panel.database.fetchval("SELECT configuration::text FROM site_backups")

    assert [(each["part"], each["name"], each["action"]) for each in shown.json()] == [
        ("app", "ada.example.com", "change"),
        ("variable", "DEBUG", "change"),
        ("variable", "SECRET", "add"),
    ]
    assert after == {"SECRET": "horse battery", "DEBUG": "0", "SAME": "1", "LATER": "2"}
    assert (await world.ada.get(f"{site}/app")).json()["entry"] == "app:application"
    assert again == []
    assert "horse battery" not in shown.text + recorded
    (tree,) = restic.trees.values()
    assert b"horse battery" in tree["content"]["content/configuration.json"]


async def test_an_application_of_another_runtime_keeps_its_settings(world: Backed) -> None:
    await _becomes_an_app(world)
    backup = await world.backup()
    await world.panel.database.execute("UPDATE site_apps SET runtime = 'node', entry = 'server.js'")

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))

    assert [(each["part"], each["action"]) for each in shown] == [("app", "leave_out")]
    assert (await world.ada.get(f"/sites/{world.site}/app")).json()["entry"] == "server.js"


async def test_a_variable_without_room_is_left_out(world: Backed) -> None:
    await _becomes_an_app(world)
    env = f"/sites/{world.site}/env"
    await world.ada.call("PUT", env, {"variables": {"FIRST": "1", "SECOND": "2"}})
    backup = await world.backup()
    later = {f"LATER_{number}": "" for number in range(MOST_VARIABLES - 1)}
    await world.ada.call("PUT", env, {"variables": later})

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))

    assert [(each["name"], each["action"]) for each in shown] == [("FIRST", "add"), ("SECOND", "leave_out")]
    assert {each["name"] for each in (await world.ada.get(env)).json()} == {*later, "FIRST"}


async def test_variables_beyond_the_size_of_all_are_left_out(world: Backed) -> None:
    await _becomes_an_app(world)
    env, most = f"/sites/{world.site}/env", 16_000
    had = {"FIRST": "a" * most, "GROWN": "b" * most, "SECOND": "c" * most, "SHRUNK": ""}
    await world.ada.call("PUT", env, {"variables": had})
    backup = await world.backup()
    since = {"GROWN": "", "LATER_1": "d" * most, "LATER_2": "e" * most, "SHRUNK": "f" * most}
    await world.ada.call("PUT", env, {"variables": since})

    shown = (await world.ada.get(f"/backups/{backup['id']}/configuration")).json()
    job = await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", PARTS))
    lines = [line["message"] for line in (await world.ada.get(f"/jobs/{job['id']}/log")).json()]
    after = await open_variables(world.panel.database, world.panel.services.sealer, world.site)

    assert [(each["name"], each["action"]) for each in shown] == [
        ("FIRST", "add"),
        ("GROWN", "change"),
        ("SECOND", "leave_out"),
        ("SHRUNK", "change"),
    ]
    assert "variable SECOND: left out, the variables of an application have at most 64 KiB together" in lines
    assert after == {**since, "FIRST": had["FIRST"], "GROWN": had["GROWN"], "SHRUNK": ""}


async def _becomes_an_app(world: Backed) -> None:
    async with world.panel.database.transaction() as tx:
        await tx.execute("UPDATE sites SET type = 'app' WHERE id = $1", world.site)
        await tx.execute(
            """INSERT INTO site_apps (site_id, runtime, interface, entry, folder, health_path)
               VALUES ($1, 'python', 'wsgi', 'app:application', 'app', '/')""",
            world.site,
        )
