"""Which code starts programs on the panel's server: what runs for a site has one door, which puts it into its group."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import svc_actors
from svc_actors.host.accounts import SiteAccount
from svc_actors.host.confined import enter_site
from svc_actors.host.folders import HostFolders
from svc_actors.host.site_runtime import site_service

ROOT = Path(svc_actors.__file__).parent
_STARTS = {
    *("run_program", "open_process", "run_process", "posix_spawn", "fork"),
    *("Popen", "check_output", "check_call", "execv", "execve", "execvp", "site_command"),
}

IN_THE_GROUP = {
    "host/site_tasks.py": "scheduled tasks",
    "host/wordpress/sites.py": "WordPress's command line",
    "panel/apps/deploying.py": "git and builds",
    "host/databases/transfer.py": "the client that reads a database in, which its callers run",
}
"""What runs a site's programs to their end, by `SiteCommands`."""

SERVICES = {
    "host/site_runtime.py": "the door itself, and services of a site, in its group by `limit_group`",
    "host/sftp/shell/services.py": "the shells of a login, by `limit_group`",
    "host/sftp/shell/serve.py": "sessions of such a shell, which stay in its group",
    "host/sftp/enter.py": "hands a terminal to such a shell",
}

OURS_FOR_A_SITE = {
    "host/confined_client.py": "file helpers: our own code with limits of its own (`confined/confine.py`)",
    "host/confined/__main__.py": "forks these",
    "host/confined/fetch.py": "the ssh of an import: its account has no site yet",
    "host/confined/sql.py": "the client of a database, within the group that it was started in",
    "host/confined/upload_pack.py": "git's protocol of a private repository, which executes nothing of the site",
    "host/databases/dump.py": "dumps, by the servers' own clients",
    "panel/apps/private_repositories.py": "runs `upload_pack`",
    "panel/imports/analysing.py": "runs `survey`, which executes nothing of the archive",
    "panel/imports/applying.py": "runs `take`, and the client of `load_command`",
    "panel/imports/contents.py": "the client of `load_command`",
    "panel/imports/foreign_hosts.py": "runs `fetch`",
    "panel/staging/tools.py": "copies and rewrites, our own code as root",
    "panel/staging/copying.py": "the client of `load_command`",
    "panel/staging/pushing.py": "the client of `load_command`",
    "panel/databases/looking.py": "the program of `load_command`, without a client",
    "panel/databases/transfers.py": "dumps and the client of `load_command`",
    "panel/backups/copies.py": "restic",
    "panel/backups/databases.py": "dumps and the client of `load_command`",
    "panel/backups/drill.py": "restic, and the client of `load_command`",
    "panel/backups/restore.py": "restic",
    "panel/backups/tools.py": "restic",
    "panel/backups/work.py": "restic",
}
"""Executes none of the site's code: bounded by its own means, and never by what a site has left."""

OF_THE_SERVER = {
    "host/visitors.py",
    *("host/accounts.py", "host/databases/client.py", "host/databases/instance.py", "host/disk_use.py"),
    "host/keeper/children.py",
    *("host/keeper/join.py", "host/launcher_keeper.py", "host/launcher_systemd.py", "host/nginx/program.py"),
    *("host/packages.py", "host/php/extensions.py", "host/programs.py", "host/releases/on_systemd.py"),
    *(
        "host/postgres/room.py",
        "host/restic/cell.py",
        "host/sftp/accept.py",
        "host/sftp/server.py",
        "host/subreaper.py",
        "host/confined/enter_site.py",
    ),
    *("panel/jobs/run.py", "panel/recovery/remote.py", "panel/recovery/sites.py", "panel/releases/own.py"),
    *("panel/releases/work.py", "panel/sites/php_extensions.py", "panel/updates/work.py"),
}
"""Means of starting, and programs of the whole server."""


def starters() -> Iterator[str]:
    for tree in ("host", "panel"):
        for path in (ROOT / tree).rglob("*.py"):
            if any(_starts(node, tree) for node in ast.walk(ast.parse(path.read_text()))):
                yield str(path.relative_to(ROOT))


def _starts(node: ast.AST, tree: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _STARTS
    if not isinstance(node, ast.Attribute):
        return False
    of = ast.unparse(node.value)
    if tree == "panel" and node.attr == "program":
        return True
    # `run` is a method of many.
    return node.attr in _STARTS or (of, node.attr) == ("subprocess", "run")


def test_whatever_starts_programs_is_known() -> None:
    known = {*SERVICES, *OURS_FOR_A_SITE, *OF_THE_SERVER, *IN_THE_GROUP} - {"host/databases/transfer.py"}

    assert set(starters()) == known


@pytest.mark.parametrize("module", IN_THE_GROUP)
def test_what_runs_programs_of_a_site_gets_them_from_the_one_door(module: str) -> None:
    text = (ROOT / module).read_text()

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
