"""Imports by the API: the plan that is gone through, what is chosen of it, and what becomes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel import host_work
from svc_actors.store import Database
from tests.panel.imports.world import World, world_of
from tests.support import foreign_archives as foreign
from tests.support.certificates import self_signed
from tests.support.foreign_archives import ADDON, DATABASE, MAIN
from tests.support.zone_files import CPANEL, DKIM, OLD

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")


def of(plan: dict[str, Any], kind: str) -> dict[str, tuple[str, str]]:
    return {item["name"]: (item["action"], item["reason"]) for item in plan["plan"] if item["kind"] == kind}


async def test_the_plan_names_every_item_and_why(world: World) -> None:
    plan = await world.uploaded(foreign.cpanel(foreign.model()))

    assert (plan["status"], plan["format"]) == ("ready", "cpanel")
    assert {name: action for name, (action, _) in of(plan, "site").items()} == {MAIN: "import", ADDON: "import"}
    assert of(plan, "database")[DATABASE][0] == "change"
    users = of(plan, "database_user")
    assert {name: action for name, (action, _) in users.items()} == dict.fromkeys(
        ("ada_wp", "ada_ro", "ada_form"), "change"
    )
    assert "can only read it" in users["ada_ro"][1]
    assert "its access from 203.0.113.7 ends" in users["ada_ro"][1]
    assert "it had INSERT, SELECT, and has all rights in it now" in users["ada_form"][1]
    assert "who could do more than read" in users["ada_wp"][1]
    assert "it had" not in users["ada_wp"][1]
    assert of(plan, "configuration")["cpmove-ada/homedir/public_html/wp-config.php"][0] == "change"
    assert of(plan, "dns")[MAIN] == ("change", f"8 records; {MAIN} leads to this server")
    assert {name: action for name, (action, _) in of(plan, "task").items() if "mysqldump" in name} == {
        "0 3 * * * mysqldump ada | gzip > /home/ada/x.gz": "leave_out"
    }
    assert of(plan, "mail")[MAIN] == ("leave_out", "mailboxes are not imported: this server keeps no mail")
    assert of(plan, "login")["ada_ftp"][0] == "leave_out"
    assert all(item["reason"] for item in plan["plan"])


async def test_mail_goes_on_to_where_it_went_and_the_site_comes_here(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))

    await world.applied(imported)
    zone = world.name_server.zones[MAIN]

    assert zone is not None
    served = {(record.owner, record.type, record.data) for record in zone.records}
    assert (MAIN, "MX", f"10 mail.{MAIN}.") in served
    assert (f"mail.{MAIN}", "A", "198.51.100.7") in served
    assert (MAIN, "A", "203.0.113.80") in served
    assert not any(name == MAIN and data == "198.51.100.7" for name, _, data in served)


async def test_a_zone_as_cpanel_writes_it_comes_whole_and_mail_stays_where_it_was(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model(), zone=CPANEL.text))

    await world.applied(imported)
    shown = await world.shown(imported)
    answers = world.name_server.answers

    assert answers(MAIN, "A") == {"203.0.113.80"}
    assert answers(MAIN, "MX") == {f"0 mail.{MAIN}."}
    assert answers(f"mail.{MAIN}", "A") == answers(f"ftp.{MAIN}", "A") == {OLD}
    assert len(answers(MAIN, "TXT")) == 2
    assert [text.replace('" "', "").strip('"') for text in answers(f"default._domainkey.{MAIN}", "TXT")] == [DKIM]
    assert answers(f"cpanel.{MAIN}", "A") == set()
    assert [note for note in shown["notes"] if note["kind"] == "dns"] == []
    assert of(shown, "dns")[MAIN][1].split("; ")[1:] == [
        f"{MAIN} leads to this server",
        f"mail.{MAIN}, ftp.{MAIN}: the records that {MAIN} had, instead of an alias of it",
        f"mail goes to mail.{MAIN}, which has the address that {MAIN} had",
    ]
    assert [name for name in of(shown, "dns") if "cpanel" in name] == [
        f"_caldav._tcp, _caldavs._tcp, _cpanel-dcv-test-record, cpanel, cpcalendars, cpcontacts, webdisk, whm of {MAIN}"
    ]


async def test_each_item_of_a_plan_is_named_once(world: World) -> None:
    plan = (await world.uploaded(foreign.cpanel(foreign.model(), zone=CPANEL.text)))["plan"]

    named = [(item["kind"], item["name"], item["reason"]) for item in plan]
    assert len(named) == len(set(named))


async def test_an_application_around_a_document_root_is_placed_whole(world: World) -> None:
    portal = f"portal.{MAIN}"
    packed = foreign.Packer()
    packed.file("cp/ada", f"DNS={MAIN}\nUSER=ada\n")
    packed.file("userdata/main", f"main_domain: {MAIN}\nsub_domains:\n  - {portal}\n")
    packed.file(f"userdata/{MAIN}", "documentroot: /home/ada/public_html\nhomedir: /home/ada\n")
    packed.file(f"userdata/{portal}", "documentroot: /home/ada/public_html/portal/public\nhomedir: /home/ada\n")
    packed.file("homedir/public_html/index.html", "<h1>shop</h1>")
    for name in (".env", "artisan", "vendor/autoload.php", "shared/x", "storage/app/public/a.png", "public/index.php"):
        packed.file(f"homedir/public_html/portal/{name}", "x")
    packed.link("homedir/public_html/portal/public/storage", "/home/ada/public_html/portal/storage/app/public")
    imported = await world.uploaded(packed.gzipped())

    job = await world.applied(imported)
    home, other = world.home(await world.site(portal)), world.home(await world.site(MAIN))
    placed = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}

    assert job["status"] == "succeeded", job
    assert of(imported, "files") == {
        "homedir/public_html/portal": (
            "import",
            "the folder of its application: all of it is placed next to public/, which was public/ there",
        ),
        "homedir/public_html/portal/shared": (
            "change",
            "it becomes private/shared, as shared/ has another meaning here",
        ),
    }
    assert placed >= {".env", "artisan", "vendor/autoload.php", "private/shared/x", "public/index.php"}
    assert (home / "public/storage/a.png").resolve() == home / "storage/app/public/a.png"
    assert [path.name for path in (other / "public").rglob("*")] == ["index.html"]


async def test_an_account_of_directadmin_comes_with_all_that_belongs_to_it(world: World, tmp_path: Path) -> None:
    files = self_signed(tmp_path, [MAIN, f"www.{MAIN}"])
    certificate = (files.certificate.read_text(), files.key.read_text())
    imported = await world.uploaded(foreign.directadmin(foreign.model(), certificate=certificate))

    job = await world.applied(imported)
    site = await world.site(MAIN)
    tasks = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()
    shown = await world.ada.get(f"/imports/{imported['id']}")

    assert (imported["format"], job["status"]) == ("directadmin", "succeeded")
    assert {name: action for name, (action, _) in of(imported, "site").items()} == dict.fromkeys(
        (MAIN, f"dev.{MAIN}", ADDON), "import"
    )
    assert site["type"] == "wordpress"
    assert f"parked-{MAIN}" in site["aliases"]
    assert (world.home(site) / "private-fixtures/orders.csv").exists()
    assert (world.home(await world.site(f"dev.{MAIN}")) / "public/index.html").read_text() == "<h1>dev</h1>"
    assert not (world.home(site) / "public/dev").exists()
    assert [(task["kind"], task["path"]) for task in tasks if task["name"] != "wordpress-cron"] == [
        ("php", "public/cron.php"),
        ("url", "/tasks?key=1"),
    ]
    assert (await world.ada.get(f"/sites/{site['id']}/ssl")).json()["source"] == "uploaded"
    assert world.name_server.answers(MAIN, "A") == {"203.0.113.80"}
    assert "5B1E5F0E" not in shown.text
    assert "PRIVATE KEY" not in shown.text


async def test_no_programs_are_run_where_a_product_keeps_uploads_unless_that_is_left_out(world: World) -> None:
    packed = foreign.Packer()
    for name in ("index.php", "configuration.php", "images/a.png"):
        packed.file(f"{MAIN}/public_html/{name}", "x")
    imported = await world.uploaded(packed.gzipped())

    await world.applied(imported, without=[f"configuration:{MAIN}/media"])
    site = await world.site(MAIN)
    denied = (await world.ada.get(f"/sites/{site['id']}/denied-paths")).json()

    assert of(imported, "configuration")[f"{MAIN}/images"] == (
        "change",
        "where Joomla keeps uploads: no PHP is run there, the path /images/**/*.php is denied",
    )
    assert {each["pattern"] for each in denied} == {"/images/**/*.php", "/tmp/**/*.php"}


async def test_tasks_and_the_certificate_come_with_the_site(world: World, tmp_path: Path) -> None:
    files = self_signed(tmp_path, [MAIN, f"www.{MAIN}"])
    pem = files.key.read_text() + files.certificate.read_text()
    imported = await world.uploaded(foreign.cpanel(foreign.model(), certificate=pem))

    job = await world.applied(imported)
    site = await world.site(MAIN)
    tasks = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()
    certificate = (await world.ada.get(f"/sites/{site['id']}/ssl")).json()
    shown = await world.ada.get(f"/imports/{imported['id']}")

    assert job["status"] == "succeeded", job
    assert {
        (task["kind"], task["path"], tuple(task["args"])) for task in tasks if task["name"] != "wordpress-cron"
    } == {
        ("php", "public/cron.php", ("--all",)),
        ("url", "/tasks?key=1", ()),
    }
    assert (certificate["source"], certificate["names"]) == ("uploaded", [MAIN, f"www.{MAIN}"])
    assert "PRIVATE KEY" not in shown.text
    assert not list(world.home(site).rglob("*.pem"))


async def test_an_import_waits_for_a_server_that_takes_longer_than_an_operation_waits(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = self_signed(tmp_path, [MAIN, f"www.{MAIN}"])
    pem = files.key.read_text() + files.certificate.read_text()
    imported = await world.uploaded(foreign.cpanel(foreign.model(), certificate=pem))

    with monkeypatch.context() as patched:
        # Whatever it does takes longer.
        patched.setattr(host_work, "HOST_PATIENCE", 0.0)
        job = await world.applied(imported)
    site = await world.site(MAIN)
    certificate = (await world.ada.get(f"/sites/{site['id']}/ssl")).json()
    notes = (await world.shown(imported))["notes"]

    assert job["status"] == "succeeded", job
    assert certificate["source"] == "uploaded"
    assert [note for note in notes if note["kind"] == "certificate"] == []


async def test_what_is_left_out_does_not_come_and_a_renamed_site_has_its_new_name(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))

    job = await world.applied(
        imported, without=[f"site:{ADDON}", f"database:{DATABASE}"], domains=[f"{MAIN}=new.example"]
    )
    sites = (await world.ada.get("/sites")).json()["items"]

    assert job["status"] == "succeeded", job
    assert [(site["domain"], site["aliases"], site["type"]) for site in sites] == [
        ("new.example", ["www.new.example"], "php")
    ]
    assert world.mariadb.contents == {}
    notes = (await world.shown(imported))["notes"]
    assert [(note["kind"], note["name"]) for note in notes if note["kind"] == "dns"] == [("dns", MAIN)]


async def test_choices_that_fit_no_plan_change_nothing(world: World) -> None:
    imported = await world.uploaded(foreign.by_hand(foreign.model()))
    path = f"/imports/{imported['id']}/apply"

    wrong = [
        await world.ada.post(path, {"without": ["database:nothing"]}),
        await world.ada.post(path, {"without": [f"site:{MAIN}"]}),
        await world.ada.post(path, {"domains": ["unknown.example=new.example"]}),
        await world.ada.post(path, {"domains": [f"{MAIN}=panel.test"]}),
        await world.ada.post(path, {"owner_email": "bob@example.com"}),
    ]

    assert [answer.status_code for answer in wrong] == [400, 400, 400, 400, 403]
    assert (await world.shown(imported))["status"] == "ready"


async def test_a_site_whose_htaccess_says_what_is_not_served_so_is_not_opened_unseen(world: World) -> None:
    trees = foreign.model()
    trees[ADDON].files[".htaccess"] = b"Require ip 192.0.2.0/24\n"
    imported = await world.uploaded(foreign.hestia(trees))

    await world.applied(imported)
    addon, main = await world.site(ADDON), await world.site(MAIN)
    notes = (await world.shown(imported))["notes"]
    planned = of(imported, "site")

    assert (addon["status"], main["status"]) == ("suspended", "active")
    assert (planned[ADDON][0], planned[MAIN][0]) == ("change", "import")
    assert "it is suspended until its owner has checked lines of its .htaccess files" in planned[ADDON][1]
    assert [
        item["action"] for item in imported["plan"] if "public/.htaccess:1: Require ip 192.0.2.0/24 (" in item["reason"]
    ] == ["leave_out"]
    assert notes == []


async def test_what_the_panel_can_have_of_an_htaccess_comes_with_the_site_and_the_site_is_open(world: World) -> None:
    trees = foreign.model()
    trees[ADDON].files[".htaccess"] = (
        b"Redirect 301 /old.html https://example.org/new\nphp_value memory_limit 512M\n"
        b"RewriteEngine on\nRewriteCond %{HTTPS} off\nRewriteRule ^ https://%{HTTP_HOST}%{REQUEST_URI} [R=301,L]\n"
        b"RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule . /index.html [L]\n"
        b"AddDefaultCharset UTF-8\n"
        b'<FilesMatch "\\.(sql|bak)$">\nRequire all denied\n</FilesMatch>\n'
    )
    trees[ADDON].files["private/.htaccess"] = b"Order deny,allow\nDeny from all\n"
    imported = await world.uploaded(foreign.hestia(trees))

    job = await world.applied(imported)
    site = await world.site(ADDON)
    redirects = (await world.ada.get(f"/sites/{site['id']}/redirects")).json()
    denied = (await world.ada.get(f"/sites/{site['id']}/denied-paths")).json()
    php = (await world.ada.get(f"/sites/{site['id']}/php")).json()
    report = (await world.ada.get(f"/sites/{site['id']}/htaccess")).json()
    planned = [item["reason"] for item in imported["plan"] if item["name"] == ADDON]

    assert job["status"] == "succeeded", job
    assert (site["status"], site["force_https"]) == ("active", True)
    assert (site["fallback_page"], site["utf8_pages"]) == ("/index.html", True)
    assert [(each["path"], each["target"], each["status"]) for each in redirects] == [
        ("/old.html", "https://example.org/new", 301)
    ]
    assert [each["pattern"] for each in denied] == ["*.bak", "*.sql", "/private"]
    assert php["settings"]["memory_limit_mib"] == 512
    assert (report["ready"], report["counts"]["translated"]) == (True, 11)
    assert "from .htaccess: PHP has memory_limit_mib 512" in planned
    assert "from .htaccess: visitors are refused /private" in planned
    assert "from .htaccess: /index.html answers for paths without a file" in planned
    assert (await world.shown(imported))["notes"] == []


async def test_a_site_is_not_opened_for_what_could_be_told_beside_what_could_not(world: World) -> None:
    trees = foreign.model()
    trees[ADDON].files[".htaccess"] = b"Redirect 301 /old.html /new\nRequire ip 192.0.2.0/24\n"
    imported = await world.uploaded(foreign.hestia(trees))
    await world.applied(imported)
    site = await world.site(ADDON)

    planned = [item["reason"] for item in imported["plan"] if item["name"] == ADDON]

    assert site["status"] == "suspended"
    assert [line for line in planned if line.startswith("public/.htaccess:")] == [
        line for line in planned if "Require ip" in line
    ]
    assert (await world.shown(imported))["notes"] == []


async def test_a_name_that_another_customer_has_fails_the_import_and_nothing_is_taken(world: World) -> None:
    await world.bob.post("/sites", {"domain": f"own.{MAIN}", "type": "static"})
    imported = await world.uploaded(foreign.by_hand(foreign.model()))

    job = await world.applied(imported)

    assert job["status"] == "failed"
    assert "Another customer has a name" in job["error"]["message"]
    shown = await world.shown(imported)
    assert (shown["status"], shown["sites"]) == ("failed", [])
    assert "Another customer" in shown["problem"]


async def test_an_import_that_a_restart_interrupted_is_applied_again_without_duplicates(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    async with world_of(panel_database, tmp_path) as world:
        imported = await world.uploaded(foreign.cpanel(foreign.model()))
        loading = trio.Event()

        async def hang(method: str) -> None:
            if method == "load":
                loading.set()
                await trio.sleep_forever()

        world.mariadb.before = hang
        begun = (await world.ada.post(f"/imports/{imported['id']}/apply", {})).json()
        with trio.fail_after(60):
            await loading.wait()
        host = world.panel.host
    async with world_of(panel_database, tmp_path, host) as world:
        world.mariadb.before = type(world.mariadb)(world.mariadb.kind).before
        interrupted = (await world.ada.get(f"/jobs/{begun['id']}")).json()
        failed = await world.shown(imported)
        (world.home(await world.site(MAIN)) / "public" / "since").write_text("x")

        again = await world.applied(imported)
        sites = (await world.ada.get("/sites")).json()["items"]

        assert interrupted["error"]["message"] == "interrupted: core restarted"
        assert failed["status"] == "failed"
        assert again["status"] == "succeeded", again
        assert sorted(site["domain"] for site in sites) == [ADDON, MAIN]
        assert list(world.mariadb.contents.values()) == [foreign.DUMP]
        assert (world.home(await world.site(MAIN)) / "public" / "since").exists()


async def test_a_reading_that_a_restart_interrupted_begins_anew_and_names_its_job(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time\ntime.sleep(600)\n")
    with monkeypatch.context() as patched:
        patched.setattr("svc_actors.panel.imports.analysing._SURVEY", hangs)
        patched.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
        async with world_of(panel_database, tmp_path) as world:
            begun = await world.upload(foreign.by_hand(foreign.model()))
            await world.panel.job_begun(begun["job_id"])
            host = world.panel.host
    async with world_of(panel_database, tmp_path, host) as world:
        await world.panel.jobs_ended()
        imported = await world.shown(begun)
        read = (await world.ada.get(f"/jobs/{imported['job_id']}")).json()

    assert imported["status"] == "ready", imported
    assert imported["job_id"] > begun["job_id"]
    assert read["kind"] == "import.analyse"


async def test_an_import_is_its_owners_alone_and_applied_once(world: World) -> None:
    imported = await world.uploaded(foreign.by_hand(foreign.model()))
    path = f"/imports/{imported['id']}"

    foreign_answers = [
        await world.bob.get(path),
        await world.bob.post(f"{path}/apply", {}),
        await world.bob.delete(path, {}),
    ]
    await world.applied(imported)
    again = await world.ada.post(f"{path}/apply", {})
    deleted = await world.ada.delete(path, {})

    assert {answer.status_code for answer in foreign_answers} == {404}
    assert (again.status_code, deleted.status_code) == (409, 200)
    assert (await world.site(MAIN))["status"] == "active"
    assert list((world.data / "imports").iterdir()) == []


async def test_what_is_no_archive_is_failed_with_the_reason_and_cannot_be_applied(world: World) -> None:
    imported = await world.uploaded(b"no archive" * 1000)

    answer = await world.ada.post(f"/imports/{imported['id']}/apply", {})

    assert imported["status"] == "failed"
    assert "This is not a supported archive" in imported["problem"]
    assert answer.status_code == 404


async def test_webhooks_tell_of_the_import_that_is_complete(world: World) -> None:
    imported = await world.uploaded(foreign.by_hand(foreign.model()))

    await world.applied(imported)
    rows = await world.panel.database.fetch("SELECT body FROM webhook_events WHERE event = 'migration.completed'")

    assert len(rows) == 1
    assert b'"format":"tree"' in rows[0]["body"].replace(b" ", b"")
    assert MAIN.encode() not in rows[0]["body"]
