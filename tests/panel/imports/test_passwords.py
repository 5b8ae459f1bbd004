"""Folders that asked for a password on the old host ask for the same one here, by what came along with the archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.panel.imports.world import World
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, MAIN, Tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")

APR1 = "$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/"
BCRYPT = "$2y$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA."
SHA = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="
SECRETS = (APR1, BCRYPT, SHA, "plain-text")
PASSWORDS = f"# members\nada:{APR1}\nbob:{BCRYPT}\neve:plain-text\njoe:{SHA}\n".encode()
OUTSIDE = "/etc/apache2/.htpasswd"


def asking(named: str, require: str = "valid-user") -> bytes:
    return f'AuthType Basic\nAuthName "Members"\nAuthUserFile "{named}"\nRequire {require}\n'.encode()


def site_with(htaccess: Mapping[str, bytes]) -> dict[str, Tree]:
    trees = foreign.model()
    for folder, text in htaccess.items():
        trees[MAIN].files |= {f"{folder}/.htaccess": text, f"{folder}/index.html": b"of members"}
    return trees


def items(imported: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in imported["plan"] if item["kind"] == "protected_path"}


async def protected(world: World) -> dict[str, list[str]]:
    site = await world.site(MAIN)
    found = (await world.ada.get(f"/sites/{site['id']}/protected-paths")).json()
    return {each["path"]: each["logins"] for each in found}


async def verifiers(world: World) -> dict[str, str]:
    rows = await world.panel.database.fetch("SELECT login, verifier FROM site_path_logins")
    return {row["login"]: row["verifier"] for row in rows}


def said(imported: dict[str, Any]) -> str:
    """What the plan says of configurations."""
    return "\n".join(item["reason"] for item in imported["plan"] if item["kind"] == "configuration")


async def notes(world: World, imported: dict[str, Any]) -> str:
    return "\n".join(note["reason"] for note in (await world.shown(imported))["notes"])


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("format", "named", "file"),
    [
        ("cpanel", "/home/ada/.htpasswds/public_html/members/passwd", ".htpasswds/public_html/members/passwd"),
        ("hestia", f"/home/ada/web/{MAIN}/private/users", "private/users"),
        ("virtualmin", "/home/ada/.htpasswd", ".htpasswd"),
        ("plesk", f"/var/www/vhosts/{MAIN}/.htpasswd", ".htpasswd"),
    ],
)
async def test_whichever_host_packed_it_a_folder_is_opened_by_the_passwords_that_it_had(
    world: World, format: str, named: str, file: str
) -> None:
    archive = getattr(foreign, format)(site_with({"members": asking(named)}), home={file: PASSWORDS})
    imported = await world.uploaded(archive)

    job = await world.applied(imported)
    site = await world.site(MAIN)
    report = (await world.ada.get(f"/sites/{site['id']}/htaccess")).json()

    [item] = items(imported).values()
    assert (item["name"], item["action"], item["id"]) == (f"{MAIN}/members", "change", "protected_path:0")
    assert f"asks for a password; logins brought from {named}: 3; left out: eve (" in item["reason"]
    assert job["status"] == "succeeded", job
    assert (site["status"], report["ready"], report["counts"]["translated"]) == ("active", True, 4)
    assert await protected(world) == {"/members": ["ada", "bob", "joe"]}
    assert await verifiers(world) == {"ada": APR1, "bob": BCRYPT, "joe": SHA}
    assert "from .htaccess: /members asks for a password; logins brought: 3" in said(imported)
    assert await notes(world, imported) == ""


async def test_files_of_passwords_lie_where_no_visitor_is_served_them(world: World) -> None:
    folders = {"a": asking("/home/ada/.htpasswds/a/passwd"), "b": asking("/home/ada/public_html/b/.htpasswd")}
    folders |= {"c": asking("/home/ada/public_html/c/users.txt"), "d": asking("/home/ada/public_html/addon/users")}
    folders |= {"e": asking("/home/ada/public_html/e/users.txt", "group board")}
    trees = site_with(folders)
    trees[MAIN].files |= {"b/.htpasswd": PASSWORDS, "c/users.txt": PASSWORDS, "e/users.txt": PASSWORDS}
    trees[ADDON].files["users"] = PASSWORDS
    home = {".htpasswds/a/passwd": PASSWORDS, ".htpasswds/other/passwd": PASSWORDS}
    imported = await world.uploaded(foreign.cpanel(trees, home=home))

    await world.applied(imported, accept_htaccess=True)
    lies = world.home(await world.site(MAIN))
    addon = world.home(await world.site(ADDON))

    assert (await protected(world)).keys() == {"/a", "/b", "/c", "/d"}
    # What lay elsewhere in the home was read, and is nowhere.
    assert {name for name in names_in(lies) if "htpasswd" in name or "passwd" in name} == {"public/b/.htpasswd"}
    assert not (lies / "private/.svc-import").exists()
    # The web server is another account, and cannot read what lies among the site's files.
    kept = [
        lies / "public/b/.htpasswd",
        lies / "public/c/users.txt",
        lies / "public/e/users.txt",
        addon / "public/users",
    ]
    for file in kept:
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (PASSWORDS, 0o600), file
    assert (lies / "public/c/index.html").stat().st_mode & 0o044 == 0o044


async def test_nothing_but_the_path_itself_has_what_passwords_are_compared_with(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    named = "/home/ada/.htpasswds/passwd"
    trees = site_with({"members": asking(named), "none": asking(f"{named}2")})
    home = {".htpasswds/passwd": PASSWORDS, ".htpasswds/passwd2": b"eve:plain-text\nplain-text\n"}
    imported = await world.uploaded(foreign.cpanel(trees, home=home))
    await world.applied(imported)
    site = await world.site(MAIN)

    database = world.panel.database
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    said = [caplog.text, str(await world.shown(imported))]
    for path in ("protected-paths", "htaccess", "migration/verify"):
        said.append((await world.ada.get(f"/sites/{site['id']}/{path}")).text)
    for name in sorted({row["tablename"] for row in tables} - {"site_path_logins"}):
        rows = await database.fetch(f'SELECT to_jsonb(found)::text AS text FROM "{name}" AS found')
        said += [row["text"] for row in rows]

    assert set((await verifiers(world)).values()) == {APR1, BCRYPT, SHA}
    audit = await database.fetch("SELECT details::text AS text FROM audit")
    assert any("/members asks for a password; logins brought: 3" in row["text"] for row in audit)
    assert [secret for secret in SECRETS for text in said if secret in text] == []


async def test_of_a_list_of_users_no_others_are_brought(world: World) -> None:
    named = "/home/ada/.htpasswd"
    trees = site_with({"board": asking(named, "user ada nobody"), "all": asking(named)})
    imported = await world.uploaded(foreign.virtualmin(trees, home={".htpasswd": PASSWORDS}))

    await world.applied(imported)

    assert "/home/ada/.htpasswd: 1;" in items(imported)[f"{MAIN}/board"]["reason"]
    assert "nobody (the file has no such login)" in items(imported)[f"{MAIN}/board"]["reason"]
    assert await protected(world) == {"/board": ["ada"], "/all": ["ada", "bob", "joe"]}
    assert (await world.site(MAIN))["status"] == "active"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (asking("/home/ada/.htpasswds/none"), "/home/ada/.htpasswds/none is not in the archive"),
        (asking(OUTSIDE), f"{OUTSIDE} is outside of the account's home"),
        (asking("/home/ada/../../etc/apache2/.htpasswd"), "is outside of the account's home"),
        (asking("users"), "users is not an absolute path"),
        (asking("/home/ada/link"), "/home/ada/link is not in the archive"),
        (asking("/home/ada/large"), "it has more than 32,768 bytes"),
        (asking("/home/ada/plain"), "eve: its password is stored as plain text"),
        (asking("/home/ada/users", "group board"), "Require group board"),
        (asking("/home/ada/users").replace(b"Basic", b"Digest"), "AuthType digest"),
        (asking("/home/ada/users") + b"AuthGroupFile /home/ada/groups\n", "AuthGroupFile /home/ada/groups"),
        (asking("/home/ada/users") + b"Satisfy any\n", "Satisfy any"),
    ],
)
async def test_what_cannot_be_brought_keeps_the_site_closed_as_the_plan_says(
    world: World, text: bytes, why: str
) -> None:
    home = {"large": PASSWORDS + b"#" * 40_000, "plain": b"eve:plain-text\n", "users": PASSWORDS}
    trees = site_with({"members": text})
    imported = await world.uploaded(foreign.cpanel(trees, home=home, links={"link": OUTSIDE}))

    await world.applied(imported)

    [item] = items(imported).values()
    assert (item["action"], item["id"]) == ("leave_out", None)
    assert why in item["reason"]
    assert why in said(imported)
    assert await notes(world, imported) == ""
    assert await protected(world) == {}
    assert (await world.site(MAIN))["status"] == "suspended"


async def test_a_folder_to_which_a_link_leads_past_the_password_keeps_the_site_closed(world: World) -> None:
    trees = site_with({"members": asking("/home/ada/.htpasswd")})
    trees[MAIN].links["shortcut"] = "members"
    imported = await world.uploaded(foreign.cpanel(trees, home={".htpasswd": PASSWORDS}))

    await world.applied(imported)

    assert "the link public/shortcut leads there" in items(imported)[f"{MAIN}/members"]["reason"]
    assert "by the link public/shortcut" in said(imported)
    assert await notes(world, imported) == ""
    assert (await world.site(MAIN))["status"] == "suspended"


async def test_this_servers_own_files_are_never_looked_at(world: World, tmp_path: Path) -> None:
    own = tmp_path / "htpasswd"
    own.write_bytes(PASSWORDS)
    own.chmod(0o644)
    imported = await world.uploaded(foreign.cpanel(site_with({"members": asking(str(own))})))

    await world.applied(imported)

    assert "is outside of the account's home" in items(imported)[f"{MAIN}/members"]["reason"]
    assert await protected(world) == {}


async def test_an_archive_packed_by_hand_does_not_say_where_it_lay(world: World) -> None:
    trees = site_with({"members": asking("/srv/www/members/.htpasswd")})
    trees[MAIN].files["members/.htpasswd"] = PASSWORDS
    imported = await world.uploaded(foreign.by_hand(trees))

    await world.applied(imported)

    assert "does not say where its files were" in items(imported)[f"{MAIN}/members"]["reason"]
    assert (await world.site(MAIN))["status"] == "suspended"


async def test_passwords_that_are_left_out_of_the_import_are_not_brought(world: World) -> None:
    trees = site_with({"members": asking("/home/ada/.htpasswd")})
    imported = await world.uploaded(foreign.cpanel(trees, home={".htpasswd": PASSWORDS}))

    await world.applied(imported, without=["protected_path:0"])

    assert await protected(world) == {}
    assert "its passwords were left out of the import" in await notes(world, imported)
    assert (await world.site(MAIN))["status"] == "suspended"


async def test_applied_again_a_path_keeps_the_logins_that_it_has_by_then(world: World) -> None:
    trees = site_with({"members": asking("/home/ada/.htpasswd")})
    imported = await world.uploaded(foreign.cpanel(trees, home={".htpasswd": PASSWORDS}))

    async def fail(method: str) -> None:
        if method == "load":
            raise RuntimeError("no room")

    before, world.mariadb.before = world.mariadb.before, fail
    assert (await world.applied(imported))["status"] == "failed"
    site = await world.site(MAIN)
    [path] = (await world.ada.get(f"/sites/{site['id']}/protected-paths")).json()
    for login in ("bob", "joe"):
        await world.ada.delete(f"/protected-paths/{path['id']}/logins", {"login": login})
    world.mariadb.before = before

    assert (await world.applied(imported))["status"] == "succeeded"
    assert await protected(world) == {"/members": ["ada"]}
    assert (await world.site(MAIN))["status"] == "active"
