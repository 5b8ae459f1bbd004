"""Which code starts programs on the panel's server: what runs for a site has one door, which puts it into its group."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc_webhost.accounts import SiteAccount
from svc_webhost.confined import enter_site
from svc_webhost.folders import HostFolders
from svc_webhost.site_runtime import site_service
from tests.support.panel_sources import panel_sources

_STARTS = {
    *("run_program", "open_process", "run_process", "posix_spawn", "fork"),
    *("Popen", "check_output", "check_call", "execv", "execve", "execvp", "site_command"),
}

IN_THE_GROUP = {
    "svc_webhost/site_tasks.py": "scheduled tasks",
    "svc_webhost/wordpress/sites.py": "WordPress's command line",
    "svc_actors/panel/apps/deploying.py": "git and builds",
    "svc_webhost/databases/transfer.py": "the client that reads a database in, which its callers run",
}
"""What runs a site's programs to their end, by `SiteCommands`."""

SERVICES = {
    "svc_webhost/site_runtime.py": "the door itself, and services of a site, in its group by `limit_group`",
    "svc_webhost/sftp/shell/services.py": "the shells of a login, by `limit_group`",
    "svc_webhost/sftp/shell/serve.py": "sessions of such a shell, which stay in its group",
    "svc_webhost/sftp/enter.py": "hands a terminal to such a shell",
}

OURS_FOR_A_SITE = {
    "svc_webhost/confined_client.py": "file helpers: our own code with limits of its own (`confined/confine.py`)",
    "svc_webhost/confined/__main__.py": "forks these",
    "svc_webhost/confined/fetch.py": "the ssh of an import: its account has no site yet",
    "svc_webhost/confined/sql.py": "the client of a database, within the group that it was started in",
    "svc_webhost/confined/upload_pack.py": "git's protocol of a private repository, which executes nothing of the site",
    "svc_webhost/databases/dump.py": "dumps, by the servers' own clients",
    "svc_actors/panel/apps/deploy_keys.py": "runs `upload_pack`",
    "svc_actors/panel/imports/analysing.py": "runs `survey`, which executes nothing of the archive",
    "svc_actors/panel/imports/applying.py": "runs `take`, and the client of `load_command`",
    "svc_actors/panel/imports/contents.py": "the client of `load_command`",
    "svc_actors/panel/imports/foreign_hosts.py": "runs `fetch`",
    "svc_actors/panel/staging/tools.py": "copies and rewrites, our own code as root",
    "svc_actors/panel/staging/copying.py": "the client of `load_command`",
    "svc_actors/panel/staging/pushing.py": "the client of `load_command`",
    "svc_actors/panel/databases/looking.py": "the program of `load_command`, without a client",
    "svc_actors/panel/databases/transfers.py": "dumps and the client of `load_command`",
    "svc_actors/panel/backups/copies.py": "restic",
    "svc_actors/panel/backups/databases.py": "dumps and the client of `load_command`",
    "svc_actors/panel/backups/drill.py": "restic, and the client of `load_command`",
    "svc_actors/panel/backups/restore.py": "restic",
    "svc_actors/panel/backups/tools.py": "restic",
    "svc_actors/panel/backups/work.py": "restic",
    "svc_actors/panel/backups/data_check.py": "restic",
}
"""Executes none of the site's code: bounded by its own means, and never by what a site has left."""

OF_THE_SERVER = {
    "svc_webhost/visitors.py",
    *(
        "svc_webhost/accounts.py",
        "svc_webhost/databases/client.py",
        "svc_webhost/databases/instance.py",
        "svc_webhost/disk_use.py",
    ),
    "svc_webhost/keeper/children.py",
    *(
        "svc_webhost/keeper/join.py",
        "svc_webhost/launcher_keeper.py",
        "svc_webhost/launcher_systemd.py",
        "svc_webhost/mail/__init__.py",
        "svc_webhost/nginx/program.py",
    ),
    *(
        "svc_webhost/packages.py",
        "svc_webhost/php/extensions.py",
        "svc_webhost/programs.py",
        "svc_webhost/releases/on_systemd.py",
    ),
    *(
        "svc_webhost/postgres/sessions.py",
        "svc_webhost/restic/cell.py",
        "svc_webhost/sftp/accept.py",
        "svc_webhost/sftp/server.py",
        "svc_webhost/subreaper.py",
        "svc_webhost/confined/enter_site.py",
    ),
    *(
        "svc_actors/panel/jobs/run.py",
        "svc_actors/panel/recovery/remote.py",
        "svc_actors/panel/recovery/sites.py",
        "svc_actors/panel/releases/own.py",
    ),
    *(
        "svc_actors/panel/releases/work.py",
        "svc_actors/panel/sites/php_extensions.py",
        "svc_actors/panel/updates/work.py",
    ),
}
"""Means of starting, and programs of the whole server."""


def starters() -> Iterator[str]:
    for name, path in panel_sources():
        decides = name.startswith("svc_actors/")
        if any(_starts(node, decides) for node in ast.walk(ast.parse(path.read_text()))):
            yield name


def _starts(node: ast.AST, decides: bool) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _STARTS
    if not isinstance(node, ast.Attribute):
        return False
    of = ast.unparse(node.value)
    if decides and node.attr == "program":
        return True
    # `run` is a method of many.
    return node.attr in _STARTS or (of, node.attr) == ("subprocess", "run")


def test_whatever_starts_programs_is_known() -> None:
    known = {*SERVICES, *OURS_FOR_A_SITE, *OF_THE_SERVER, *IN_THE_GROUP} - {"svc_webhost/databases/transfer.py"}

    assert set(starters()) == known


@pytest.mark.parametrize("module", IN_THE_GROUP)
def test_what_runs_programs_of_a_site_gets_them_from_the_one_door(module: str) -> None:
    text = dict(panel_sources())[module].read_text()

    assert "SiteCommands(" in text
    assert "site_command(" not in text


ORDER_OF_EARLIER_RELEASES = ["uid", "gid", "home", "folder", "data", "shown", "processes", "log"]
"""The keys that the definitions of services have which an update finds: they go on with the new `enter_site`."""


def test_what_runs_a_service_asks_for_no_key_that_an_earlier_release_did_not_write() -> None:
    tree = ast.parse(Path(enter_site.__file__).read_text())
    asked = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "wanted"
        and isinstance(node.slice, ast.Constant)
    }

    assert asked == set(ORDER_OF_EARLIER_RELEASES)


def test_a_service_is_defined_as_the_earlier_release_did_so_that_an_update_restarts_no_site(tmp_path: Path) -> None:
    service = site_service(HostFolders(tmp_path), SiteAccount(1001), "php", ("/usr/bin/true",), log="php")

    assert list(json.loads(service.command[4])) == ORDER_OF_EARLIER_RELEASES
