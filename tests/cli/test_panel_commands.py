"""`svc` on a panel's server: the panel's commands, over the core's socket, without a sign-in."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
import structlog

from svc.cli import following
from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Profile, ProfileFile, save
from svc.cli.services import ServiceKind, service_of
from svc.cli.shapes import shaped
from svc.cli.work import Work, WorkKind
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from tests.cli.conftest import Terminal
from tests.support.panel import PanelHarness
from tests.support.panel_core import listening_core
from tests.support.panel_sites import site_row
from tests.support.served import RecordedServing
from tests.support.site_files import give, site_folder


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core's log is no part of what a command prints."""
    with structlog.testing.capture_logs():
        yield


async def test_root_asks_the_core_without_a_token(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        listed = await terminal.ok("--socket", str(panel.services.config.socket), "site", "list", "-o", "json")
        by_variable = await terminal.ok("site", "list", "-o", "json", SVC_SOCKET=str(panel.services.config.socket))

    assert listed.json["items"] == by_variable.json["items"] == []


async def test_a_token_is_used_over_the_socket_too(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        token = await panel.token(await panel.person("ada@example.com"))

        me = await terminal.ok("me", "-o", "json", SVC_SOCKET=str(panel.services.config.socket), SVC_TOKEN=token)

    assert me.json["email"] == "ada@example.com"


@pytest.mark.usefixtures("hurried")
async def test_a_core_that_is_not_there_is_told_with_what_to_do(terminal: Terminal) -> None:
    ended = await terminal.svc("--socket", "/nonexistent/core.sock", "site", "list")

    assert ended.code == Exit.UNAVAILABLE
    assert "is the panel's core running" in ended.err


async def test_ops_prints_the_registry_of_the_service_that_is_meant(terminal: Terminal) -> None:
    panel = await terminal.ok("--socket", "/nonexistent/core.sock", "ops", "-o", "json")
    controller = await terminal.ok("--url", "https://controller.test:8443", "ops", "-o", "json")

    assert "site.list" in {row["operation"] for row in panel.json}
    assert "vm.list" in {row["operation"] for row in controller.json}


async def test_a_site_is_deleted_once_its_domain_is_typed(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        await panel.person("ada@example.com")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        created = ("site", "create", "shop.example.com", "--type", "static", "--admin-email", "ada@example.com")
        await terminal.ok(*created, **at)

        other = await terminal.svc("site", "delete", "shop.example.com", typed="blog.example.com\n", **at)
        deleted = await terminal.svc("site", "delete", "shop.example.com", typed="shop.example.com\n", **at)

    assert other.code == Exit.INVALID
    assert "nothing was done" in other.err
    assert deleted.code == Exit.OK, deleted.err
    assert "site.delete" in deleted.out


async def test_the_command_asks_for_www_and_a_program_does_not(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        at = ("--socket", str(panel.services.config.socket), "site", "create")
        await panel.person("ada@example.com")
        owner = ("--type", "static", "--owner-email", "ada@example.com", "-o", "json")

        plain = await terminal.ok(*at, "example.org", *owner)
        without = await terminal.ok(*at, "example.net", *owner, "--no-www")
        below = await terminal.ok(*at, "shop.example.org", *owner)
        shown = await terminal.ok("--socket", str(panel.services.config.socket), "site", "get", "example.org")

    assert plain.json["aliases"] == ["www.example.org"]
    assert without.json["aliases"] == below.json["aliases"] == []
    assert "www.example.org does not resolve" in shown.out
    assert "A 203.0.113.80" in shown.out


async def test_a_site_is_named_in_its_own_letters_or_in_those_of_the_dns(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        at = ("--socket", str(panel.services.config.socket), "site")
        ada = await panel.person("ada@example.com")
        await site_row(panel.database, ada, "xn--mller-shop-9db.example")

        listed = await terminal.ok(*at, "list")
        own = await terminal.ok(*at, "get", "müller-shop.example")
        by_dns = await terminal.ok(*at, "get", "xn--mller-shop-9db.example", "-o", "json")

    assert "müller-shop.example" in listed.out
    assert "xn--" not in listed.out
    assert "müller-shop.example (xn--mller-shop-9db.example) does not resolve" in own.out
    assert by_dns.json["domain"] == "xn--mller-shop-9db.example"


async def test_variables_of_an_application_are_read_from_standard_input(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        await panel.person("ada@example.com")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        order = ("site", "create", "shop.example.com", "--type", "app", "--runtime", "node", "--entry", "server.js")
        await terminal.ok(*order, "--admin-email", "ada@example.com", **at)
        put = ("app", "env-set", "shop.example.com", "--variables", "-")

        await terminal.ok(*put, given="# of the shop\nTOKEN=one=two\n\nMODE=live\n", **at)
        kept = await terminal.ok(*put, given="TOKEN\nMODE=test\n", **at)
        nothing = await terminal.svc(*put, given="", **at)
        listed = await terminal.ok("app", "env", "shop.example.com", "-o", "json", **at)

    assert [row["name"] for row in listed.json] == ["MODE", "TOKEN"]
    assert "one=two" not in kept.out
    assert nothing.code == Exit.INVALID
    assert "--variables: nothing on standard input" in nothing.err


async def test_a_job_is_waited_for_and_followed(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        await panel.person("ada@example.com")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        for domain in ("shop.example.com", "blog.example.com"):
            await terminal.ok("site", "create", domain, "--type", "static", "--admin-email", "ada@example.com", **at)

        deleted = await terminal.ok("site", "delete", "shop.example.com", "--yes", "--wait", "-o", "json", **at)
        begun = await terminal.ok("site", "delete", "blog.example.com", "--yes", "-o", "json", **at)
        watched = await terminal.ok("job", "watch", str(begun.json["id"]), "-o", "json", **at)

    assert (deleted.json["status"], deleted.json["progress"]) == ("succeeded", 100)
    assert {step["status"] for step in deleted.json["steps"]} == {"succeeded"}
    assert begun.json["status"] == "queued"
    assert watched.json["status"] == "succeeded"


def test_a_job_that_failed_says_why_what_to_do_and_where_its_log_is() -> None:
    error = {"code": "conflict", "message": "The disk is full.", "hint": "Free some space, then try again."}
    job = {"id": 7, "title": "Back up shop.example.com", "status": "failed", "progress": 40, "error": error}

    with pytest.raises(Failure) as told:
        following.check(Work(WorkKind.JOB, "7"), job)

    assert told.value.exit_code == Exit.TASK_FAILED
    assert told.value.message == "Back up shop.example.com failed: The disk is full. (conflict)"
    assert told.value.hint == "Free some space, then try again; its log: svc job log 7"


def test_what_a_site_has_is_shown_in_rows_and_lines() -> None:
    files = {"path": "", "total": 1, "offset": 0}
    entry = {"name": "index.html", "kind": "file", "size": 3, "mode": "0644", "modified_at": "2026-11-22T11:00:00Z"}
    record = {"name": "example.com", "type": "MX", "ttl": 300, "id": "4c02"}
    data = {"type": "MX", "preference": 10, "exchange": "mail.example.com"}

    assert shaped(files | {"entries": [entry | {"own": True}]}) == [entry]
    assert shaped({"lines": ["GET / 200", "GET /a 404"], "cursor": "1-2"}) == "GET / 200\nGET /a 404"
    (shown,) = shaped({"records": [record | {"data": data}], "delegation": {}})
    assert shown["data"] == "10 mail.example.com"


@pytest.mark.parametrize("command", [("file", "mkdir"), ("dns", "create"), ("certificate", "issue")])
async def test_a_site_is_named_once(terminal: Terminal, command: tuple[str, str]) -> None:
    helped = await terminal.ok("--socket", "/nonexistent", *command, "--help")

    assert "SITE" in helped.out
    assert "--site-id" not in helped.out


@pytest.mark.parametrize(
    ("arguments", "environment", "meant"),
    [
        ([], {}, ServiceKind.CONTROLLER),
        (["--url", "https://panel.test:7443"], {}, ServiceKind.PANEL),
        (["site", "list", "--url=https://panel.test:7443"], {}, ServiceKind.PANEL),
        (["--url", "https://sites.test"], {}, ServiceKind.PANEL),
        (["--url", "https://controller.test:8443"], {"SVC_SOCKET": "/run/x"}, ServiceKind.PANEL),
        ([], {"SVC_URL": "https://controller.test:8443"}, ServiceKind.CONTROLLER),
        (["--profile", "sites"], {"SVC_URL": "https://controller.test:8443"}, ServiceKind.PANEL),
        (["--profile", "machines"], {}, ServiceKind.CONTROLLER),
    ],
)
def test_who_names_a_service_means_that_one(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], meant: ServiceKind
) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path), **environment}
    save(
        environment,
        ProfileFile(
            None,
            {
                "sites": Profile(url="https://sites.test", service="panel"),
                "machines": Profile(url="https://controller.test:8443"),
            },
        ),
    )

    assert service_of(environment, arguments, tmp_path / "core.sock") is meant


def test_where_a_panel_is_installed_it_is_meant_also_while_its_core_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "panel.toml").touch()
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}

    with_a_panel = service_of(environment, [], tmp_path / "core.sock", tmp_path / "panel.toml")
    without = service_of(environment, [], tmp_path / "core.sock", tmp_path / "other.toml")

    assert (with_a_panel, without) == (ServiceKind.PANEL, ServiceKind.CONTROLLER)


def test_without_a_profile_the_core_on_this_server_is_meant(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "core.sock"))

        meant = service_of({"XDG_CONFIG_HOME": str(tmp_path)}, [], tmp_path / "core.sock")

    assert meant is ServiceKind.PANEL


async def test_a_command_of_the_other_service_is_told_with_how_to_mean_that_one(terminal: Terminal) -> None:
    """A profile that a controller left is current: the panel of this server has to be named."""
    save(terminal.variables(), ProfileFile("demo", {"demo": Profile(url="https://controller.test:8443")}))

    on_the_controller = await terminal.svc("site", "list")
    on_the_panel = await terminal.svc("--socket", "/nonexistent/core.sock", "vm", "list")
    of_neither = await terminal.svc("bogus")

    assert on_the_controller.code == on_the_panel.code == of_neither.code == Exit.INVALID
    assert "site is a command of a panel" in on_the_controller.err
    assert "--socket /run/svc-panel/core.sock" in on_the_controller.err
    assert "vm is a command of a controller" in on_the_panel.err
    assert "No such command 'bogus'" in of_neither.err


async def test_an_access_account_is_found_by_its_name_and_by_its_login(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        editor = await terminal.ok("sftp", "create", "example.test", "editor", "-o", "json", **at)
        await terminal.ok("sftp", "create", "example.test", "other", **at)

        unknown = await terminal.svc("sftp", "delete", "example.test", "ada@example.com", "--yes", **at)
        await terminal.ok("sftp", "delete", "example.test", editor.json["login"], "--yes", **at)
        await terminal.ok("sftp", "delete", "example.test", "other", "--yes", **at)
        left = await terminal.ok("sftp", "list", "example.test", "-o", "json", **at)

    assert unknown.code == Exit.NOT_FOUND
    assert "svc sftp list" in unknown.err
    assert left.json == []


async def test_what_belongs_to_a_site_is_named_once_the_site_is_said(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        person = await panel.person("ada@example.com")
        for site in ("example.test", "other.test"):
            await site_row(panel.database, person, site)
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        for site in ("example.test", "other.test"):
            await terminal.ok("redirect", "create", site, "/old", "/new", **at)

        unsaid = await terminal.svc("redirect", "delete", "/old", "--yes", **at)
        unknown = await terminal.svc("redirect", "delete", "/older", "--site", "other.test", "--yes", **at)
        await terminal.ok("redirect", "delete", "/old", "--site", "other.test", "--yes", **at)
        kept = await terminal.ok("redirect", "list", "example.test", "-o", "json", **at)
        gone = await terminal.ok("redirect", "list", "other.test", "-o", "json", **at)

    assert unsaid.code == Exit.INVALID
    assert "--site" in unsaid.err
    assert "`svc redirect list SITE`" in unsaid.err
    assert unknown.code == Exit.NOT_FOUND
    assert [redirect["path"] for redirect in kept.json] == ["/old"]
    assert gone.json == []


async def test_a_site_is_diagnosed_and_repaired_by_one_command(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        # The web server was never told of it.
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}

        found = await terminal.ok("site", "diagnose", "example.test", "-o", "json", **at)
        unknown = await terminal.svc("site", "diagnose", "example.test", "--repair", "everything", **at)
        mended = await terminal.ok("site", "diagnose", "example.test", "--repair", "configuration", "-o", "json", **at)
        serving = cast(RecordedServing, panel.host.web)
        [number] = serving.sites
        serving.refuses[number] = "no"
        serving.sites.clear()
        failed = await terminal.svc("site", "diagnose", "example.test", "--repair", "configuration", **at)

    assert [check["name"] for check in found.json["checks"] if check["state"] == "faulty"] == ["configuration"]
    assert unknown.code == Exit.INVALID
    assert mended.json["healthy"] is True
    assert failed.code != 0
    assert "configuration" in failed.out


async def _site_with_files(panel: PanelHarness, monkeypatch: pytest.MonkeyPatch) -> UUID:
    """One that has its folder on this server, and `public` in it."""
    if os.geteuid() != 0:  # Who cannot make accounts has the site's files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    site = await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
    async with panel.database.transaction() as tx:
        number = await tx.fetchval("SELECT number FROM sites WHERE id = $1", site)
    give(site_folder(panel.services.config.data_dir / "sites", number), "public/index.html")
    return site


async def test_a_file_is_uploaded_and_goes_on_where_it_was_interrupted(
    panel_database: Database, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(1_700_000)
    (tmp_path / "video.mp4").write_bytes(content)
    put: list[int] = []
    call = Client.call

    async def counting(client: Client, method: str, path: str, **given: Any) -> Any:
        if method == "PUT":
            if len(put) == 2:
                raise Failure(Exit.UNAVAILABLE, "nobody answers")
            put.append(given["body"]["offset"])
        return await call(client, method, path, **given)

    async with listening_core(panel_database) as panel:
        await _site_with_files(panel, monkeypatch)
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        sent = ("file", "upload", "example.test", str(tmp_path / "video.mp4"), "public/")
        monkeypatch.setattr(Client, "call", counting)
        interrupted = await terminal.svc(*sent, **at)
        monkeypatch.setattr(Client, "call", call)
        [left] = (await terminal.ok("upload", "list", "example.test", "-o", "json", **at)).json
        await terminal.ok(*sent, **at)
        again = await terminal.svc(*sent, **at)
        (tmp_path / "video.mp4").write_bytes(content[::-1])
        await terminal.ok(*sent, "--replace", **at)
        back = ("file", "download", "example.test", "public/video.mp4", "-o", str(tmp_path / "back"))
        await terminal.ok(*back, **at)

    assert interrupted.code == Exit.UNAVAILABLE, interrupted.err
    assert "it resumes the upload" in interrupted.err
    assert sum(there["end"] - there["start"] for there in left["received"]) < len(content)
    assert again.code == Exit.CONFLICT, "a file that is there is replaced only when that is said"
    assert (tmp_path / "back").read_bytes() == content[::-1]


async def test_what_came_of_another_file_is_not_made_one_with_this(
    panel_database: Database, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page").write_bytes(b"this")
    async with listening_core(panel_database) as panel:
        site = await _site_with_files(panel, monkeypatch)
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        async with Client.open(Profile("http://core", socket=at["SVC_SOCKET"])) as client:
            begun = await client.call("POST", f"/sites/{site}/files/upload", body={"path": "page", "size": 4})
            part = {"offset": 0, "data_base64": base64.b64encode(b"that").decode()}
            await client.call("PUT", f"/sites/{site}/files/upload/{begun['id']}", body=part)

        mixed = await terminal.svc("file", "upload", "example.test", str(tmp_path / "page"), "page", **at)
        await terminal.ok("file", "upload", "example.test", str(tmp_path / "page"), "page", **at)
        shown = await terminal.ok("file", "read", "example.test", "page", "-o", "json", **at)

    assert mixed.code == Exit.CONFLICT
    assert "is of a different file" in mixed.err
    assert shown.json["content"] == "this"


async def test_a_refused_operation_shows_what_it_was_about(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        site = await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        await terminal.svc("site", "suspend", "example.test", **at)  # no reason is given
        table = await terminal.ok("audit", "list", **at)
        untouched = await terminal.ok("audit", "list", "-o", "json", **at)

    assert f"site {str(site)[:8]}" in table.out
    assert untouched.json["items"][0]["target_name"] is None


async def test_the_types_of_a_record_are_named_as_they_are_written(
    panel_database: Database, terminal: Terminal
) -> None:
    async with listening_core(panel_database) as panel:
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        socket = ("--socket", str(panel.services.config.socket))
        refused = await terminal.svc(*socket, "dns", "create", "example.test", "www", "--data", '{"type": "BOGUS"}')

    assert "must be of one of the types A, AAAA, CNAME," in refused.err


async def test_an_empty_token_is_not_taken_for_none_over_the_socket(
    panel_database: Database, terminal: Terminal
) -> None:
    """A script that read no token would be root otherwise."""
    async with listening_core(panel_database) as panel:
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        by_variable = await terminal.svc("site", "list", **at, SVC_TOKEN="")
        by_flag = await terminal.svc("site", "list", "--token", "", **at)
        wrong = await terminal.svc("site", "list", "--token", "svcvm_wrong", **at)

    assert by_variable.code == by_flag.code == Exit.INVALID
    assert "the API token is empty" in by_variable.err
    assert wrong.code == Exit.UNAUTHENTICATED
    assert "svc login" not in wrong.err  # there is nothing to sign in to at a socket


async def test_times_that_are_too_few_say_which_are_needed(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        refused = await terminal.svc("schedule", "create", "example.test", "nightly", "php", "a.php", "hello", **at)

    assert refused.code == Exit.INVALID
    assert "five fields are needed: minute, hour," in refused.err


async def test_a_site_without_a_wordpress_is_said_to_have_none(panel_database: Database, terminal: Terminal) -> None:
    async with listening_core(panel_database) as panel:
        await site_row(panel.database, await panel.person("ada@example.com"), "example.test")
        at = {"SVC_SOCKET": str(panel.services.config.socket)}
        refused = await terminal.svc("wordpress", "get", "example.test", **at)

    assert refused.code == Exit.CONFLICT
    assert "has no WordPress" in refused.err
    assert "created with the type wordpress" in refused.err


async def test_help_shows_in_brackets_what_may_be_left_out(terminal: Terminal) -> None:
    helped = await terminal.ok("--socket", "/nonexistent", "app", "deploy", "--help")

    assert "SITE [ARCHIVE]" in helped.out
