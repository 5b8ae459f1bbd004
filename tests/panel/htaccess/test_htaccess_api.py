"""The report over a site's .htaccess files, by the API."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined.judge import MOST_LINES
from tests.support.panel import open_panel
from tests.support.site_files import give, site_folder


async def test_every_file_of_the_tree_is_told_with_what_becomes_of_its_lines(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
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


WORST = {
    "a tag of blanks": b"<a" + b" " * 200_000 + b"x\n",
    "choices": b"RewriteRule ^(" + b"|".join(b"a%d" % n for n in range(60)) + b")" + b"b" * 150 + b"$ - [F]\n",
    "denials": b"Deny from all\nRequire all denied\n",
}


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def helper_of(folder: Path) -> int | None:
    """The process that has the site's folder open, this one aside."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            if str(folder) in links and int(process.name) != os.getpid():
                return int(process.name)
    return None


async def test_others_are_served_while_the_worst_files_of_a_site_are_judged(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    events: list[str] = []
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "php"})).json()
        folder = site_folder(tmp_path / "sites", site["number"])
        # The last ones have more lines than are told, at which the helper stops.
        for number, worst in enumerate((WORST["a tag of blanks"], *[WORST["choices"]] * 6, WORST["denials"])):
            give(folder, f"public/{number:02}/.htaccess", worst * (250_000 // len(worst)))
        report: dict[str, Any] = {}

        async def analyse() -> None:
            report.update((await ada.get(f"/sites/{site['id']}/htaccess")).json())
            events.append("judged")

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(analyse)
                while (helper := helper_of(folder.path)) is None or processor_seconds(helper) < 0.3:
                    await trio.sleep(0.01)
                # It is under way, and goes no further before another customer was served.
                os.kill(helper, signal.SIGSTOP)
                events.append(str((await bob.get("/me")).json()["email"]))
                os.kill(helper, signal.SIGCONT)

    assert events == ["bob@example.com", "judged"]
    assert (report["ready"], report["complete"]) == (False, False)
    assert 1000 < sum(len(file["lines"]) for file in report["files"]) <= MOST_LINES
    assert max(len(line["text"]) for file in report["files"] for line in file["lines"]) == 1000


async def test_a_file_in_a_folder_whose_name_is_no_text_is_judged(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        ada = await panel.customer("ada@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "php"})).json()
        folder = site_folder(tmp_path / "sites", site["number"])
        give(folder, f"public/{os.fsdecode(b'caf' + bytes([0xE9]))}/.htaccess", b"Options -Indexes\n")

        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert [(file["path"], file["lines"][0]["verdict"]) for file in report["files"]] == [
        ("public/caf\ufffd/.htaccess", "same")
    ]


async def test_a_folder_whose_page_nginx_alone_would_show_is_told(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
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
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
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
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        ada = await panel.customer("ada@example.com")
        body = {"domain": "app.example.com", "type": "app", "runtime": "node", "entry": "server.js"}
        site = (await ada.post("/sites", body)).json()
        give(site_folder(tmp_path / "sites", site["number"]), "public/.htaccess", b"Deny from all\n")

        report = (await ada.get(f"/sites/{site['id']}/htaccess")).json()

    assert (report["ready"], report["counts"]["same"]) == (True, 1)
