"""Owners and modes of a site's files: what is wrong is found and mended, and nothing outside of the site is touched."""

from __future__ import annotations

import grp
import os
import shutil
from pathlib import Path

import pytest
import trio

from svc_actors.host import accounts, site_rights
from svc_actors.host.accounts import AccountError, SiteAccount, SystemAccounts
from svc_actors.host.folders import HostFolders
from svc_actors.host.site_rights import WrongRights, mend_rights, wrong_rights

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

    mend_rights(home, UID)

    assert words(home) == []
    assert {path: path.stat().st_ctime_ns for path in home.rglob("*")} == before


def no_look(*_: object) -> list[WrongRights]:
    raise AssertionError("the core looked itself")


async def test_a_look_is_a_program_of_its_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (home / "private/notes", home / "public/index.php"):
        path.chmod(0)
    expected = wrong_rights(home, SITE.uid, grp.getgrnam("www-data").gr_gid)
    folders = HostFolders(home.parent / "data")
    folders.sites.mkdir(parents=True)
    home.rename(folders.sites / SITE.name)
    monkeypatch.setattr(site_rights, "wrong_rights", no_look)

    found = await SystemAccounts(folders).wrong_rights(SITE)

    assert [wrong.words for wrong in expected if ".php" in wrong.words]
    assert [wrong for wrong in found if "has no user" not in wrong.words] == expected


async def test_a_look_that_nobody_waits_for_ends(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    monkeypatch.setattr(accounts, "_LOOK", ("/bin/sh", "-c", f"echo $$ > {began}; exec /bin/sleep 1000"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SystemAccounts(HostFolders(tmp_path)).wrong_rights, SITE)
        pid = int(await trio.Path(began).read_text())
        nursery.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_look_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_LOOK", ("/bin/sh", "-c", "echo No such disk. >&2; exit 1"))
    with pytest.raises(AccountError, match="No such disk"):
        await SystemAccounts(HostFolders(tmp_path)).wrong_rights(SITE)


def test_of_very_many_files_the_first_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_rights, "_MOST_WRONG", 3)
    for number in range(5):
        (home / "public" / f"{number}.html").touch(mode=0o000)

    assert len([word for word in words(home) if ".html" in word]) == 3


def test_files_of_root_without_modes_or_with_set_uid_bits_are_mended(home: Path) -> None:
    (home / "public/index.php").chmod(0)
    (home / "private/notes").chmod(0o6755)
    (home / "public/wp").chmod(0o000)
    for path in (home / "public/wp", home / "public/wp/config.php"):
        os.chown(path, 0, 0)

    found = words(home)
    mend_rights(home, UID)

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
    mend_rights(home, UID)

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
