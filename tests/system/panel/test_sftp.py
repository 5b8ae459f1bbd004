"""SFTP to sites with a real sshd: who gets in, how far, and until when."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.own_etc import copy_etc, with_etc

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = Path(__file__).resolve().parents[3]
NO_CONTROL_GROUPS = "mount -t tmpfs -o ro none /sys/fs/cgroup"


async def life(url: str, folder: Path, order: str, *, prepare: str = "true") -> dict[str, Any]:
    await trio.to_thread.run_sync(copy_etc, folder / "etc")
    program = [sys.executable, "-m", "tests.system.panel.sftp_life", url, order]
    ran = await trio.run_process(
        with_etc(folder / "etc", "sh", "-c", f'{prepare} && exec "$@"', "sh", *program),
        cwd=ROOT,
        capture_stderr=True,
        check=False,
    )
    said = ran.stderr.decode()
    told = [line for line in said.splitlines() if line.startswith("RESULT ")]
    assert told, said[-6000:]
    result: dict[str, Any] = json.loads(told[0].removeprefix("RESULT "))
    return result


async def test_access_by_sftp_from_the_first_key_to_the_end_of_the_site(
    panel_database_url: str, tmp_path: Path
) -> None:
    found = await life(panel_database_url, tmp_path, "live")

    def lets_in(what: str) -> bool:
        return bool(found[what]["status"] == 0)

    def refused(what: str) -> bool:
        return found[what]["status"] != 0 and "Permission denied" in found[what]["err"]

    # A program of a site gets the port at no time: before the first login, after the server was killed, while it is
    # replaced.
    assert found["port_taken"]["tried"] > 10
    assert found["port_taken"]["taken"] == []

    # Keys and passwords open what they are for; nothing else does.
    assert lets_in("by_key"), found["by_key"]
    assert "/site" in found["by_key"]["out"]
    assert {"private", "public", "tmp"} <= set(found["by_key"]["out"].split())
    assert lets_in("by_password"), found["by_password"]
    assert "index.html" in found["by_password"]["out"]
    assert lets_in("by_made_up_password"), found["by_made_up_password"]
    for what in ("wrong_password", "key_without_a_key", "root", "site_itself"):
        assert refused(what), found[what]

    # Files are the site's, and nobody gets further than the site, or the folder of theirs.
    assert found["given"] == [found["uid"], 0o644]
    assert found["of_b"] == found["uid"] + 1
    names = [line for line in found["up"]["out"].split() if line not in ("sftp>", "ls", "-1a", "-1", "/", "../../..")]
    assert set(names) <= {".", "..", "site", "/.", "/..", "/site", "../../../site"}
    for what in ("above", "link_out", "own_link_out", "other_site", "other_site_by_path", "folder_up"):
        assert found[what]["status"] != 0, (what, found[what])
    assert "index.html" in found["folder"]["out"]
    assert "private" not in found["folder"]["out"]
    assert not lets_in("folder_that_is_a_link")
    assert lets_in("folder_again"), found["folder_again"]
    assert "given.txt" in found["folder_again"]["out"]
    assert found["passwd_unchanged"]
    assert found["machines_mounts"] == []

    # Nothing is executed and nothing forwarded.
    assert "uid=" not in found["command"]["out"]
    assert found["command"]["status"] != 0
    assert "uid=" not in found["shell"]["out"]
    assert found["shell"]["status"] != 0
    assert "PTY allocation request failed" in found["shell"]["err"]
    assert "administratively prohibited" in found["forward"]["err"]
    assert "remote port forwarding failed" in found["forward_back"]["err"]
    for setting in ("disableforwarding yes", "allowagentforwarding no", "permittunnel no", "permituserrc no"):
        assert setting in found["settings"].splitlines()

    # The connections of a login are bounded, also of one that has signed in.
    assert found["connections"] == 10
    assert found["connections_kept"]
    # Whoever has signed in is no longer a new connection, of which the port bears few.
    assert found["known_as_signed_in"] == [True] * found["connections"]
    assert len(found["known_as_strangers"]) == 1

    # Who may not sign in any more is out.
    assert found["session_of_deleted"] not in (None, 0)
    assert found["kept"] is None
    assert refused("deleted")
    assert found["session_of_suspended"] not in (None, 0)
    assert refused("suspended")
    assert found["left_running"] == []
    assert lets_in("new_password")
    assert refused("old_password")
    assert (found["job of a.test"], found["job of b.test"]) == ("succeeded", "succeeded")
    assert "Connection closed" in found["without_logins"]["err"], found["without_logins"]
    assert found["left"] == found["keys_left"] == []


async def test_the_last_login_that_is_removed_ends_its_sessions_on_a_server_without_control_groups(
    panel_database_url: str, tmp_path: Path
) -> None:
    found = await life(panel_database_url, tmp_path, "last_login", prepare=NO_CONTROL_GROUPS)

    assert found["went_on"] is None
    assert found["ended"] not in (None, 0)


async def test_a_shell_is_where_the_programs_of_its_site_run_and_ends_with_its_login(
    panel_database_url: str, tmp_path: Path
) -> None:
    found = await life(panel_database_url, tmp_path, "shell")

    def out(what: str) -> str:
        return str(found[what]["out"]).strip()

    # It is the site's account in its home, with nothing of others in sight.
    uid = str(found["uid"])
    assert out("who").splitlines() == [uid, uid, found["home"], f"{found['home']} {found['account']} /bin/bash"]
    assert out("others_files") == "", found["others_files"]
    assert out("others_processes").splitlines()[0] == uid
    assert int(out("others_processes").splitlines()[1]) < 12
    assert [line for line in out("others_tmp").splitlines() if line and not line.endswith(":")] == []
    assert out("engines") == "mysqld.sock"
    assert out("others_sockets") == "shared"
    assert dict(line.split() for line in out("no_new_privileges").splitlines())["NoNewPrivs:"] == "1"
    assert set(found["read_only"]["out"].split(":")[-1].split()) >= {"Read-only"}
    assert out("processes_without_a_limit") == "256"
    assert int(out("descriptors")) <= 4

    # Commands end as they ended, and what they say comes whole.
    assert found["status"]["status"] == 7
    assert found["killed"]["status"] == 255
    assert found["output"]["length"] == 3_000_000
    assert "said" in found["output"]["err"]
    assert out("php") == f"cli{uid}"
    assert out("git") == "1"
    assert out("given") == "through"
    assert found["copied"]["files"][:2] == sorted(f"by-{each}" for each in found["copied"] if each != "files")[:2]
    assert {status for what, status in found["copied"].items() if what != "files"} == {0}

    # A terminal is one: its size, its signals, and the status of the shell.
    terminal = found["terminal"]["out"]
    assert "/dev/pts/" in terminal
    assert "33 99" in terminal
    assert "in-42" in terminal
    assert found["terminal"]["status"] == 5
    assert "status-130" in found["interrupted"]["out"]
    assert "administratively prohibited" in found["forward"]["err"]

    # A fork bomb has the processes of its site, and nobody else's; all of it ends with the login.
    assert found["most_processes"] <= 45
    assert out("other_site_meanwhile") == "here"
    assert found["session"] not in (None, 0)
    assert found["bystander"] is None
    assert found["left_running"] == 0
    assert "Permission denied" in found["deleted"]["err"]
    assert found["not_allowed"] not in (None, 0)
    assert found["suspended"] not in (None, 0)
    assert not any("shell" in name for name in found["services"])
