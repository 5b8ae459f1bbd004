"""Owners and modes of a site's files: what is wrong is found and mended, and nothing outside of the site is touched."""

from __future__ import annotations

import grp
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from svc_webhost import accounts, site_rights
from svc_webhost.accounts import NICENESS_OF_A_LOOK, AccountError, SiteAccount, SystemAccounts
from svc_webhost.folders import HostFolders
from svc_webhost.site_rights import WrongRights, repair_rights, wrong_rights

SITE = SiteAccount(1001)
UID, WEB = SITE.uid, 33


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "s1001"
    for name, mode in (("", 0o710), ("public", 0o755), ("private", 0o700), ("tmp", 0o700), ("public/wp", 0o755)):
        folder = home / name
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, UID, WEB if not name else UID)
    for name in ("public/index.php", "public/wp/config.php", "private/notes"):
        (home / name).write_text("x")
        (home / name).chmod(0o640)
        os.chown(home / name, UID, UID)
    return home


def words(home: Path) -> list[str]:
    return [wrong.words for wrong in wrong_rights(home, UID, WEB)]


def test_of_a_healthy_site_nothing_is_said_and_nothing_changed(home: Path) -> None:
    before = {path: path.stat().st_ctime_ns for path in home.rglob("*")}

    repair_rights(home, UID)

    assert words(home) == []
    assert {path: path.stat().st_ctime_ns for path in home.rglob("*")} == before


def test_what_visitors_ask_for_is_read_by_the_web_server(home: Path) -> None:
    """An archive that was made with a umask of 077 unpacks so."""
    (home / "public/imgs").mkdir()
    (home / "public/data").mkdir()
    kept = ("wp/wp-config.php", ".env", "auth.json", "backup.zip")
    for name in ("index.html", "imgs/a.png", "data/.htaccess", "data/index.html", *kept):
        (home / "public" / name).write_text("x")
        (home / "public" / name).chmod(0o600)
        os.chown(home / "public" / name, UID, UID)
    for folder in ("imgs", "data"):
        os.chown(home / "public" / folder, UID, UID)
        (home / "public" / folder).chmod(0o700)
    (home / "public/data/index.html").chmod(0o644)

    found = words(home)
    repair_rights(home, UID)

    assert [line.partition(" ")[0] for line in found] == ["public/imgs", "public/imgs/a.png", "public/index.html"]
    assert all("the web server may not read it" in line for line in found[1:])
    # Other files in a folder that is closed may be public once it is opened: its owner decides.
    assert words(home) == found[:1]
    assert "o+x" in found[0]
    modes = {name: (home / "public" / name).stat().st_mode & 0o777 for name in ("imgs", "imgs/a.png", "index.html")}
    assert modes == {"imgs": 0o700, "imgs/a.png": 0o644, "index.html": 0o644}
    assert {(home / "public" / name).stat().st_mode & 0o777 for name in kept} == {0o600}
    assert (home / "public/data").stat().st_mode & 0o777 == 0o700


def not_here(*_: object) -> list[WrongRights]:
    raise AssertionError("the core went over the files itself")


async def look(folders: HostFolders) -> list[WrongRights]:
    return await SystemAccounts(folders).wrong_rights(SITE, NICENESS_OF_A_LOOK)


async def mend(folders: HostFolders) -> None:
    await SystemAccounts(folders).mend_rights(SITE)


def instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Of the program that goes over the files."""
    monkeypatch.setattr(accounts, "_SITE_RIGHTS", ("/bin/sh", "-c", script))


async def test_files_are_read_and_mended_by_programs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (home / "private/notes", home / "public/index.php"):
        path.chmod(0)
    expected = wrong_rights(home, SITE.uid, grp.getgrnam("www-data").gr_gid)
    folders = HostFolders(home.parent / "data")
    folders.sites.mkdir(parents=True)
    home.rename(folders.sites / SITE.name)
    monkeypatch.setattr(site_rights, "wrong_rights", not_here)
    monkeypatch.setattr(site_rights, "repair_rights", not_here)

    found = await look(folders)
    await mend(folders)
    left = await look(folders)

    assert [wrong.words for wrong in expected if ".php" in wrong.words]
    assert [wrong for wrong in found if "has no user" not in wrong.words] == expected
    assert [wrong for wrong in left if wrong in expected and ("notes" in wrong.words or ".php" in wrong.words)] == []


@pytest.mark.parametrize("order", [look, mend])
async def test_what_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[HostFolders], Awaitable[object]]
) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    instead(monkeypatch, f"echo $$ > {began}; exec /bin/sleep 1000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order, HostFolders(tmp_path))
        pid = int(await trio.Path(began).read_text())
        nursery.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "exec /bin/sleep 1000")
    monkeypatch.setattr(accounts, "_SITE_RIGHTS_SECONDS", 0.1)

    with pytest.raises(AccountError, match=r"longer than 0\.1 seconds"):
        await mend(HostFolders(tmp_path))


async def test_what_says_more_than_it_may_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "exec /usr/bin/yes")

    with pytest.raises(AccountError, match="more output"):
        await look(HostFolders(tmp_path))


async def test_what_says_something_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "echo It is late.")

    with pytest.raises(AccountError, match="It is late"):
        await look(HostFolders(tmp_path))


@pytest.mark.parametrize("order", [look, mend])
async def test_what_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[HostFolders], Awaitable[object]]
) -> None:
    instead(monkeypatch, "echo No such disk. >&2; exit 1")
    with pytest.raises(AccountError, match="No such disk"):
        await order(HostFolders(tmp_path))


async def test_a_look_of_somebody_who_asks_is_behind_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(monkeypatch, """echo "{\\"words\\": \\"$(nice)\\"}\"""")
    monkeypatch.setattr(accounts, "_missing_user", lambda account: iter(()))
    system = SystemAccounts(HostFolders(tmp_path))
    own = os.nice(0)

    found = [(await system.wrong_rights(SITE, niceness))[0].words for niceness in (NICENESS_OF_A_LOOK, 5)]

    assert found == [str(min(own + niceness, 19)) for niceness in (NICENESS_OF_A_LOOK, 5)]


@pytest.mark.parametrize("missing", ["program", "nice", "python"])
async def test_a_program_that_cannot_be_started_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    nowhere = str(tmp_path / "nowhere")
    match missing:
        case "program":
            monkeypatch.setattr(accounts, "_SITE_RIGHTS", (nowhere,))
        case "nice":
            monkeypatch.setattr(accounts, "_NICE", nowhere)
        case _:
            monkeypatch.setattr(sys, "executable", nowhere)

    with pytest.raises(AccountError, match="nowhere"):
        await look(HostFolders(tmp_path))


def test_of_very_many_files_the_first_are_told_and_all_counted(home: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.touch()
    for number in range(25):
        os.link(foreign, home / "public" / f"{number:02}.html")
    for number in range(3):
        (home / "public" / f"z{number}.html").touch(mode=0o000)

    found = wrong_rights(home, UID, WEB)

    assert [wrong.mendable for wrong in found] == [False] * 20 + [True], "a repair helps with one of the last"
    assert found[-1] == WrongRights("8 more of the kind.", count=8)


def test_what_is_said_of_a_file_is_bounded_however_deep_it_lies_and_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.open(home / "public", os.O_RDONLY)
    for _ in range(20):
        os.mkdir(b"\xff" * 255, dir_fd=folder)
        below = os.open(b"\xff" * 255, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)

    status = site_rights.main(["look", str(home), str(UID), str(WEB)])

    lines = capsys.readouterr().out.splitlines()
    assert (status, len(lines)) == (0, 20)
    assert max(len(line) for line in lines) < 1000


def test_files_of_root_without_modes_or_with_set_uid_bits_are_mended(home: Path) -> None:
    (home / "public/index.php").chmod(0)
    (home / "private/notes").chmod(0o6755)
    (home / "public/wp").chmod(0o000)
    for path in (home / "public/wp", home / "public/wp/config.php"):
        os.chown(path, 0, 0)

    found = words(home)
    repair_rights(home, UID)

    assert len(found) == 4
    assert words(home) == []
    assert (home / "public/index.php").stat().st_mode & 0o7777 == 0o644
    assert (home / "private/notes").stat().st_mode & 0o7777 == 0o755
    assert (home / "public/wp").stat().st_mode & 0o7777 == 0o755
    assert (home / "public/wp/config.php").stat().st_mode & 0o7777 == 0o640, "a mode that works stays"


def test_nothing_that_a_link_leads_to_is_touched(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "shadow"
    outside.write_text("secret")
    outside.chmod(0o600)
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "passwd").write_text("x")
    os.link(outside, home / "public/hard")
    (home / "public/soft").symlink_to(outside)
    (home / "public/away").symlink_to(folder)

    found = wrong_rights(home, UID, WEB)
    repair_rights(home, UID)

    assert [(wrong.words.partition(" ")[0], wrong.mendable) for wrong in found] == [("public/hard", False)]
    assert outside.stat().st_uid == (folder / "passwd").stat().st_uid == os.geteuid()
    assert outside.stat().st_mode & 0o777 == 0o600


def test_a_home_that_is_gone_or_somebody_elses_is_said(home: Path) -> None:
    os.chown(home / "public", 0, 0)
    (home / "tmp").chmod(0o777)

    found = words(home)
    (home / "tmp").rmdir()

    assert found == [
        f"public belongs to 0:0, not to {UID}:{UID}.",
        "tmp has the mode 0777, not 0700.",
    ]
    assert words(home)[1:] == [f"The folder {home / 'tmp'} of the site is gone."]


@pytest.mark.parametrize("name", ["", "public", "private"])
def test_a_folder_with_data_that_is_gone_is_restored_and_not_made_anew(home: Path, name: str) -> None:
    shutil.rmtree(home / name)

    found = wrong_rights(home, UID, WEB)

    assert found == [
        WrongRights(
            f"The folder {home / name} of the site is gone: restore the site from a backup.", mendable=False, lost=True
        )
    ]
