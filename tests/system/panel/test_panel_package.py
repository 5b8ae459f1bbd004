"""The panel's Debian package, installed on a server whose first process is systemd."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from svc_actors.store import Component, known_migrations
from svc_webhost.accounts import FIRST_UID
from tests.support.debian_updates import offer_updates
from tests.support.package import packages
from tests.support.panel_on_systemd import InstalledPanel
from tests.support.systemd_root import SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]

CORE, WEB, KNOT = "svc-panel-core.service", "svc-panel-web.service", "svc-host-knot.service"
DOCUMENT = ("curl", "-fsSk", "https://127.0.0.1:7443/api/v1/openapi.json")
SWITCH = "/usr/bin/python3 -I -S /usr/lib/svc/panel/svc_webhost/releases/__main__.py /opt/svc-panel /usr/lib/svc/panel"
CONTROL = Path(__file__).resolve().parents[3] / "tools" / "packages" / "panel" / "control"
ADA = "ada@example.com"
APPLICATION = """
import os
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{version} {{os.getuid()}}".encode()]
"""
ROWS = """<?php
[$user, $password] = json_decode('{login}');
$rows = new mysqli(null, $user, $password, '{name}', 0, '{socket}');
$rows->query('CREATE TABLE IF NOT EXISTS words (number INT AUTO_INCREMENT PRIMARY KEY, word VARCHAR(20))');
if (isset($_GET['add'])) {{
    $adding = $rows->prepare('INSERT INTO words (word) VALUES (?)');
    $adding->execute([$_GET['add']]);
}}
echo implode(' ', array_column($rows->query('SELECT word FROM words ORDER BY number')->fetch_all(), 0));
"""


def needed() -> str:
    """What the package depends on, and what the tests use themselves."""
    [depends] = re.findall(r"^Depends: (.*)$", CONTROL.read_text(), re.MULTILINE)
    return ",".join(
        sorted({word.split()[0] for word in depends.split(", ")} | {"curl", "procps", "php", "php8.2-cli", "wordpress"})
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdRoot]:
    with systemd_root(tmp_path_factory.mktemp("server"), needed()) as root:
        (root.folder / "var/cache/svc-panel.deb").write_bytes(packages()["svc-panel"].read_bytes())
        root.run("dpkg", "--install", "/var/cache/svc-panel.deb")
        yield root


@pytest.fixture(scope="module")
def panel(server: SystemdRoot) -> InstalledPanel:
    """With a customer, and a site of theirs with PHP."""
    server.until(*DOCUMENT)
    panel = InstalledPanel(server)
    panel.ask("POST", "/users", email=ADA, name="Ada", role="customer", password="Correct-Horse-42")
    return panel


@pytest.fixture(scope="module")
def php_site(panel: InstalledPanel) -> dict[str, Any]:
    wanted = {"domain": "php.example.com", "type": "php", "admin_email": ADA, "memory_mib": 256, "processes": 30}
    site: dict[str, Any] = panel.ask("POST", "/sites", **wanted)
    return site


@pytest.fixture(scope="module")
def app_site(panel: InstalledPanel) -> dict[str, Any]:
    wanted = {"domain": "app.example.com", "type": "app", "runtime": "python", "entry": "app:application"}
    site: dict[str, Any] = panel.ask("POST", "/sites", **wanted, admin_email=ADA)
    panel.write(site, "app.py", APPLICATION.format(version="one"))
    panel.ask("POST", f"/sites/{site['id']}/app/start")
    return site


def show(server: SystemdRoot, unit: str, name: str) -> str:
    return server.run("systemctl", "show", "--property", name, "--value", unit).strip()


def test_an_installed_panel_serves_browsers_and_the_command_line(server: SystemdRoot) -> None:
    document = server.until(*DOCUMENT)
    listed = server.run("svc", "ops")

    assert '"title":"Hosting Panel"' in document.replace(": ", ":")
    assert "site.create" in listed or "token.create" in listed
    assert server.run("systemctl", "is-enabled", CORE, WEB).split() == ["enabled", "enabled"]
    assert server.run("ps", "-o", "user=", "-p", show(server, WEB, "MainPID")).split() == ["svc-web"]
    assert server.run("ps", "-o", "user=", "-p", show(server, CORE, "MainPID")).split() == ["root"]


TAKES = """
import os, socket
os.setuid(65534)
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET6, "::1")):
    for port in (7443, 2222):
        taking = socket.socket(family)
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            taking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            taking.bind((address, port))
            taking.listen()
            print("got", address, port)
        except OSError:
            pass
"""


def test_nobody_else_gets_the_ports_of_the_panel_while_nothing_serves_them(server: SystemdRoot) -> None:
    server.until(*DOCUMENT)
    server.run("systemctl", "stop", WEB)
    taken = server.run("python3", "-c", TAKES)
    unserved = server.run("curl", "-sSk", "--max-time", "2", "https://[::1]:7443/", check=False)
    states = server.run("systemctl", "is-active", WEB, "svc-panel-web.socket", check=False).split()
    server.run("systemctl", "start", WEB)

    assert "limit rate over" in server.until("nft", "list", "table", "inet", "svc_visitors")
    assert taken == ""
    assert unserved == ""
    assert states == ["inactive", "active"], "a visitor starts nothing"
    assert '"title"' in server.until("curl", "-fsSk", "https://[::1]:7443/api/v1/openapi.json")
    assert '"title"' in server.until(*DOCUMENT)


def test_debians_own_servers_leave_the_ports_to_the_panel(server: SystemdRoot) -> None:
    states = server.run(
        "systemctl", "is-active", "nginx.service", "knot.service", "php8.2-fpm.service", check=False
    ).split()

    assert states == ["inactive"] * 3


def test_the_core_sees_what_a_site_left_in_the_servers_tmp(server: SystemdRoot) -> None:
    left = ("/tmp/left-by-a-site", "/var/tmp/left-by-a-site")
    server.run("touch", *left)
    root = f"/proc/{show(server, CORE, 'MainPID')}/root"

    seen = server.run(
        "sh",
        "-c",
        'for each; do if [ -e "$each" ]; then echo "$each"; fi; done',
        "sh",
        *(f"{root}{path}" for path in left),
    )

    assert seen.split() == [f"{root}{path}" for path in left]


def test_the_web_tier_could_do_little_besides(server: SystemdRoot) -> None:
    verdict = server.run("systemd-analyze", "security", "--no-pager", "--threshold=20", WEB)

    assert "Overall exposure level" in verdict


def test_php_of_a_site_runs_as_its_account_and_sees_no_other_process(
    panel: InstalledPanel, php_site: dict[str, Any]
) -> None:
    code = (
        "<?php error_log('said'); echo posix_getuid(), ' ', count(glob('/proc/[0-9]*')), ' ', ini_get('memory_limit');"
    )
    panel.write(php_site, "public/index.php", code)

    first = panel.visit(php_site).split()
    panel.ask("PATCH", f"/sites/{php_site['id']}/php", memory_limit_mib=96)
    second = panel.visit(php_site).split()
    # Written by a process of its own.
    log = f"/var/lib/svc/panel/logs/sites/{php_site['account']}/php.log"
    panel.server.until("grep", "said", log)
    logged = panel.ask("GET", f"/sites/{php_site['id']}/logs?source=php")["lines"]

    # The master and its worker.
    assert first == [str(FIRST_UID + php_site["number"]), "2", "256M"]
    assert second[2] == "96M"
    assert any("said" in line for line in logged)


def test_an_application_is_started_and_loses_no_visitor_when_it_is_restarted(
    panel: InstalledPanel, app_site: dict[str, Any]
) -> None:
    site = app_site
    first = panel.visit(site)
    # Of another length: Python takes a source of the same second and length for the one that it has compiled.
    panel.write(site, "app.py", APPLICATION.format(version="second"))
    panel.ask("POST", f"/sites/{site['id']}/app/restart")
    second = panel.visit(site)
    panel.ask("POST", f"/sites/{site['id']}/suspend", suspended=True, reason="unpaid")
    panel.server.until("sh", "-c", f"! ls /run/systemd/system | grep site-{site['number']}-app-")
    panel.ask("POST", f"/sites/{site['id']}/suspend", suspended=False)
    third = panel.server.until("curl", "-fsS", "-H", "Host: app.example.com", "http://127.0.0.1/")

    versions = ("one", "second", "second")
    assert [first, second, third] == [f"{version} {FIRST_UID + site['number']}" for version in versions]


def test_an_application_is_built_by_the_uv_that_the_package_brings(panel: InstalledPanel, tmp_path: Path) -> None:
    wanted = {"domain": "built.example.com", "type": "app", "runtime": "python", "entry": "app:application"}
    site = panel.ask("POST", "/sites", **wanted, admin_email=ADA)
    project = '[project]\nname = "shop"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "app.py").write_text(APPLICATION.format(version="built"))
    subprocess.run(
        [find_uv_bin(), "lock", "--quiet", "--offline", "--python", "/usr/bin/python3"], cwd=tmp_path, check=True
    )
    code = panel.server.folder / f"var/lib/svc/panel/sites/{site['account']}/code.tar"
    with tarfile.open(code, "w") as archive:
        for file in sorted(tmp_path.iterdir()):
            archive.add(file, file.name)

    panel.done("POST", f"/sites/{site['id']}/deploy", archive="code.tar", build="uv")

    assert panel.visit(site) == f"built {FIRST_UID + site['number']}"


def test_everything_of_a_suspended_site_stops_and_comes_back(panel: InstalledPanel, php_site: dict[str, Any]) -> None:
    at, server, number = f"/sites/{php_site['id']}", panel.server, php_site["number"]
    panel.write(php_site, "public/alive.php", "<?php echo 'alive';")
    panel.write(php_site, "private/long.php", "<?php file_put_contents('private/began', 'x'); sleep(600);")
    long = {"name": "long", "kind": "php", "path": "private/long.php", "cron": "0 4 * * *"}
    task = panel.ask("POST", f"{at}/schedules", **long)
    server.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/key")
    login = panel.ask("POST", f"{at}/sftp", name="ada", keys=[server.run("cat", "/root/key.pub").strip()])
    trusting = ("-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "-i", "/root/key", "-P", "2222")
    sftp = ("sftp", "-q", "-b", "/dev/null", *trusting, f"{login['login']}@127.0.0.1")

    panel.visit(php_site, "/alive.php")
    server.until(*sftp)
    run = panel.ask("POST", f"/schedules/{task['id']}/run")
    server.until("test", "-e", f"/var/lib/svc/panel/sites/{php_site['account']}/private/began")
    panel.ask("POST", f"{at}/suspend", suspended=True, reason="unpaid")
    server.until("sh", "-c", f"! ls /run/systemd/system | grep site-{number}-", within=60)
    server.until("sh", "-c", f"! {' '.join(sftp)}")
    server.until("sh", "-c", f"! pgrep -u {FIRST_UID + number} php")
    ended = panel.ask("GET", f"/schedules/{task['id']}/runs/{run['id']}")
    page = server.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *visitor(php_site, "/alive.php"))
    panel.ask("POST", f"{at}/suspend", suspended=False)
    back = server.until("curl", "-fsS", *visitor(php_site, "/alive.php"))
    server.until(*sftp)

    assert ended["status"] == "stopped"
    assert page == "503"
    assert back == "alive"


def visitor(site: dict[str, Any], path: str) -> tuple[str, ...]:
    return ("-H", f"Host: {site['domain']}", f"http://127.0.0.1{path}")


def test_a_scheduled_task_is_run_as_its_site(panel: InstalledPanel, php_site: dict[str, Any]) -> None:
    panel.write(php_site, "private/task.php", "<?php echo 'task ', posix_getuid(), ' ', $argv[1], PHP_EOL;")
    wanted = {"name": "task", "kind": "php", "path": "private/task.php", "args": ["given"], "cron": "0 4 * * *"}
    schedule = panel.ask("POST", f"/sites/{php_site['id']}/schedules", **wanted)

    ended = panel.ended_run(schedule, panel.ask("POST", f"/schedules/{schedule['id']}/run"))

    assert (ended["status"], ended["output"]) == ("succeeded", f"task {FIRST_UID + php_site['number']} given")


def test_what_was_damaged_comes_back_from_a_backup_with_its_database(
    panel: InstalledPanel, php_site: dict[str, Any]
) -> None:
    wanted = {"site_id": php_site["id"], "engine": "mariadb", "name": "shop", "user": "ada"}
    created = panel.ask("POST", "/databases", **wanted)
    login = json.dumps([created["login"]["user"]["name"], created["login"]["password"]])
    panel.write(php_site, "public/rows.php", ROWS.format(login=login, **created["database"]))
    panel.write(php_site, "public/kept.txt", "as it was")
    before = panel.visit(php_site, "/rows.php?add=first")

    panel.done("POST", f"/sites/{php_site['id']}/backups")
    panel.visit(php_site, "/rows.php?add=second")
    panel.write(php_site, "public/kept.txt", "damaged")
    damaged = panel.visit(php_site, "/rows.php")
    [backup] = panel.ask("GET", f"/backups?status=completed&site={php_site['id']}")["items"]
    panel.done("POST", f"/backups/{backup['id']}/restore")

    assert (before, damaged) == ("first", "first second")
    assert panel.visit(php_site, "/rows.php") == "first"
    assert panel.visit(php_site, "/kept.txt") == "as it was"


def test_a_wordpress_is_made_and_shown(panel: InstalledPanel) -> None:
    wanted = {"domain": "blog.example.com", "type": "wordpress", "admin_email": ADA, "title": "The Blog of Ada"}
    site = panel.ask("POST", "/sites", **wanted)
    [job] = [job for job in panel.ask("GET", "/jobs")["items"] if job["site_id"] == site["id"]]
    panel.ended(job)

    told = json.loads(panel.visit(site, "/?rest_route=/"))
    described = panel.ask("GET", f"/sites/{site['id']}/wordpress")

    [cron] = panel.ask("GET", f"/sites/{site['id']}/schedules")
    run = panel.ended_run(cron, panel.ask("POST", f"/schedules/{cron['id']}/run"))

    assert told["name"] == described["title"] == "The Blog of Ada"
    assert (cron["name"], run["status"], run["output"]) == ("wordpress-cron", "succeeded", "")


def test_updates_come_in_while_sites_are_served_and_what_is_held_stays(
    panel: InstalledPanel, php_site: dict[str, Any]
) -> None:
    server = panel.server
    panel.write(php_site, "public/served.txt", "served")
    before = server.run("dpkg-query", "--show", "--showformat", "${Version}", "restic")
    offer_updates(server, "nginx", "restic")
    panel.done("POST", "/updates/look")
    panel.ask("POST", "/updates/hold", package="restic")
    found = {each["name"]: each for each in panel.ask("GET", "/updates")["updates"]}
    serving = show(server, "svc-host-nginx.service", "MainPID")

    job = panel.done("POST", "/updates/install")
    shown = panel.ask("GET", "/updates")

    assert (found["nginx"]["security"], found["nginx"]["held"], found["restic"]["held"]) == (True, False, True)
    assert [each["name"] for each in shown["last"]["packages"]] == ["nginx"]
    assert shown["last"]["job_id"] == job["id"]
    assert shown["last"]["silent_sites"] == []
    assert shown["held"] == ["restic"]
    assert server.run("dpkg-query", "--show", "--showformat", "${Version}", "restic") == before
    assert server.run("dpkg-query", "--show", "--showformat", "${Version}", "nginx") == found["nginx"]["available"]
    assert show(server, "svc-host-nginx.service", "MainPID") != serving
    assert "(deleted)" not in server.run("readlink", f"/proc/{show(server, 'svc-host-nginx.service', 'MainPID')}/exe")
    assert panel.visit(php_site, "/served.txt") == "served"


def test_a_release_is_tried_and_one_that_fails_ends_on_the_release_before_with_no_visitor_lost(
    panel: InstalledPanel, php_site: dict[str, Any], app_site: dict[str, Any]
) -> None:
    server = panel.server
    panel.write(php_site, "public/served.txt", "served")
    panel.write(php_site, "public/index.php", "<?php echo 'served';")
    panel.visit(php_site)
    newest = known_migrations((Component.PANEL,))[-1].number
    soon = "/run/systemd/system/svc-panel-switch.service.d"
    server.run("mkdir", soon)
    server.run("sh", "-c", f"printf '[Service]\\nExecStart=\\nExecStart={SWITCH} 3\\n' >{soon}/soon.conf")
    server.run("systemctl", "daemon-reload")

    # A file that nginx serves, PHP, and an application, one after the other.
    pages = [
        f"http://{php_site['domain']}/served.txt",
        f"http://{php_site['domain']}/",
        f"http://{app_site['domain']}/",
    ]
    each = ("--fail", "--fail-early", "--resolve", "*:80:127.0.0.1", "--output", "/dev/null", "--output", "/dev/null")
    with server.visited(*pages[:1], *each, *pages[1:]) as visits:
        good = panel.update("0.9.1", {})
        no_start = panel.update("0.9.2", {"svc/cli/panel/core.py": "raise RuntimeError('it does not start')\n"})
        migrations = {
            f"{newest + 1:04d}_expands": "CREATE TABLE of_the_release_that_failed (id integer);",
            f"{newest + 2:04d}_fails": "SELECT 1 / 0;",
        }
        no_migration = panel.update(
            "0.9.3", {f"svc_actors/store/migrations/panel/{name}.sql": sql for name, sql in migrations.items()}
        )
    version = server.run("svc", "--version")
    alerts = [each["message"] for each in panel.ask("GET", "/alerts")["items"]]
    killed = panel.ask("GET", "/updates/panel")["running"]

    assert (good["last"]["state"], good["running"]["version"]) == ("kept", "0.9.1")
    assert (no_start["last"]["state"], no_start["running"]["version"]) == ("returned", "0.9.1")
    assert "it does not start" in no_start["last"]["reason"]
    assert (no_migration["last"]["state"], no_migration["running"]["version"]) == ("returned", "0.9.1")
    assert "division by zero" in no_migration["last"]["reason"]
    assert any("0.9.3" in message for message in alerts)
    assert "0.9.1" in version
    assert killed["name"].startswith("0.9.1-")
    assert len(visits) > 20
    assert set(visits) == {0}


def test_a_killed_core_is_back_and_neither_web_nor_what_serves_ended(server: SystemdRoot) -> None:
    server.until(*DOCUMENT)
    server.until("systemctl", "is-active", KNOT)
    before = [show(server, unit, "MainPID") for unit in (WEB, KNOT)]

    server.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", CORE)
    server.until("sh", "-c", f"[ $(systemctl show --property NRestarts --value {CORE}) -ge 1 ]")
    server.until(*DOCUMENT)

    assert [show(server, unit, "MainPID") for unit in (WEB, KNOT)] == before


def test_who_comes_while_the_web_tier_is_restarted_waits_and_is_refused_by_nobody(server: SystemdRoot) -> None:
    with server.visited("https://127.0.0.1:7443/api/v1/openapi.json", "--insecure") as restarted:
        server.run("systemctl", "restart", WEB)
        server.until(*DOCUMENT)
    with server.visited("https://127.0.0.1:7443/api/v1/openapi.json", "--insecure") as killed:
        server.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", WEB)
        server.until("sh", "-c", f"[ $(systemctl show --property NRestarts --value {WEB}) -ge 1 ]")
        server.until(*DOCUMENT)

    assert set(restarted) == {0}
    assert 0 in killed
    assert 7 not in killed


def test_a_removed_panel_leaves_its_data_and_no_process(server: SystemdRoot) -> None:
    server.run("dpkg", "--remove", "svc-panel")

    assert server.run("ls", "/var/lib/svc/panel").split() != []
    assert server.run("sh", "-c", "ps -eo args= | grep -c '[s]vc panel' || true").strip() == "0"
    assert server.run("sh", "-c", "ls /run/systemd/system | grep svc-host || true").strip() == ""
