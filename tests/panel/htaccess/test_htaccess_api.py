"""The report over a site's .htaccess files, by the API."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svc_actors.host.accounts import SiteAccount
from svc_actors.store import Database
from tests.support.panel import open_panel
from tests.support.site_files import give, site_folder


async def test_every_file_of_the_tree_is_told_with_what_becomes_of_its_lines(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path) as panel:
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "php"})).json()
        folder = site_folder(tmp_path / "sites", site["number"])
        give(folder, "public/.htaccess", b"Options -Indexes\nExpiresActive on\n")
        before = (await ada.get(f"/sites/{site['id']}/htaccess")).json()
        give(folder, "public/admin/.htaccess", b"# only us\nRequire ip 192.0.2.0/24\n")
        give(folder, "private/.htaccess", b"Deny from all\n")
        (folder.path / "public" / "linked").symlink_to("admin")
        (folder.path / "public" / "out").symlink_to("/etc")

        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()
        foreign = await bob.get(f"/sites/{site['id']}/htaccess")
        (folder.path / "public/admin/.htaccess").unlink()
        (folder.path / "public/admin/.htaccess").symlink_to("/etc/passwd")
        unread = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert (before["ready"], before["counts"]["same"], before["counts"]["harmless"]) == (True, 1, 1)
    assert {file["path"]: [(line["line"], line["verdict"]) for line in file["lines"]] for file in report["files"]} == {
        "private/.htaccess": [(1, "same")],
        "public/.htaccess": [(1, "same"), (2, "harmless")],
        "public/admin/.htaccess": [(2, "blocks")],
    }
    assert (report["ready"], report["complete"], report["counts"]["blocks"]) == (False, True, 1)
    assert foreign.status_code == 404
    assert (unread["ready"], unread["complete"]) == (False, False)
    assert "root:" not in str(unread)


async def test_a_folder_whose_page_nginx_alone_would_show_is_told(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.customer("ada@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "php"})).json()
        folder = site_folder(tmp_path / "sites", site["number"])
        give(folder, "public/.htaccess", b"DirectoryIndex index.php\n")
        give(folder, "public/both/index.php", b"")
        give(folder, "public/both/index.html", b"")
        before = (await ada.get(f"/sites/{site['id']}/htaccess")).json()
        give(folder, "public/papers/index.html", b"")

        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert (before["ready"], report["ready"]) == (True, False)
    assert "papers/index.html" in report["files"][0]["lines"][0]["reason"]


async def test_what_a_link_leads_past_is_told(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.customer("ada@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "static"})).json()
        folder = site_folder(tmp_path / "sites", site["number"])
        give(folder, "public/.htaccess", b"<Files secret>\nRequire all denied\n</Files>\n")
        give(folder, "public/inner/.htaccess", b"Require all denied\n")
        give(folder, "private/.htaccess", b"Require all denied\n")
        for pattern in ("secret", "/inner"):
            await ada.post(f"/sites/{site['id']}/denied-paths", {"pattern": pattern})
        before = (await ada.get(f"/sites/{site['id']}/htaccess")).json()
        (folder.path / "public" / "way").symlink_to("inner")
        (folder.path / "public" / "up").symlink_to("../private")
        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert {line["verdict"] for file in before["files"] for line in file["lines"]} == {"translated", "same"}
    found = {file["path"]: [(line["verdict"], line["reason"]) for line in file["lines"]] for file in report["files"]}
    assert [verdict for verdict, _ in found["public/.htaccess"]] == ["translated"]
    for path, link in (("public/inner/.htaccess", "public/way"), ("private/.htaccess", "public/up")):
        [(verdict, reason)] = found[path]
        assert verdict == "blocks"
        assert link in reason


async def test_a_site_whose_files_nobody_visits_is_ready(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.customer("ada@example.com")
        body = {"domain": "app.example.com", "type": "app", "runtime": "node", "entry": "server.js"}
        site = (await ada.post("/sites", body)).json()
        give(site_folder(tmp_path / "sites", site["number"]), "public/.htaccess", b"Deny from all\n")

        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert (report["ready"], report["counts"]["same"]) == (True, 1)
