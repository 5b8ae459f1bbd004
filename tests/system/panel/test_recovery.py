"""A server that is lost with all that it had, and comes back on a new one: real core, restic, nginx, PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.errors import ServiceError
from svc_actors.host.accounts import FIRST_UID
from svc_actors.host.restic import Repository, SystemRestic
from svc_actors.panel.backups.places import write_secret
from svc_actors.panel.certificates.served import Serving, shown_at
from svc_actors.panel.recovery.remote import Programs
from tests.support.certificates import self_signed
from tests.support.figures import report_figure
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

INTERRUPTED = "interrupted: core restarted"


@pytest.fixture
def disk() -> Iterator[Path]:
    """Where backups are copied to: it outlives the server."""
    folder = Path(tempfile.mkdtemp(prefix="svc-recovery-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


async def asked(panel: PanelPrograms, method: str, address: str, token: str | None = None, **body: Any) -> Any:
    async with panel.client(token) as client:
        answer = await client.request(method, address, json=body if method != "GET" else None)
    assert answer.status_code < 300, answer.text
    return answer.json()


async def ended(panel: PanelPrograms, job_id: int) -> dict[str, Any]:
    with trio.fail_after(240):
        while (job := await asked(panel, "GET", f"/jobs/{job_id}"))["ended_at"] is None:
            await trio.sleep(0.1)  # Another process does it.
    found: dict[str, Any] = job
    return found


def tree(home: Path) -> dict[str, tuple[int, int, bytes | str]]:
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in sorted(home.rglob("*")):
        seen = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        if not path.name.startswith(".svc-tmp"):
            found[str(path.relative_to(home))] = (seen.st_mode, seen.st_uid, content)
    return found


async def test_sites_come_back_on_a_new_server_whatever_kills_its_core(disk: Path, tmp_path: Path) -> None:
    """One repository has a damaged pack at first; the core is killed while it becomes the lost server, and at several
    steps of a site that comes back."""
    async with open_panel_programs() as old:
        await old.start()
        await old.customer()
        sites = {"static.example.com": await old.site("static.example.com")}
        sites["php.example.com"] = await old.site("php.example.com", type="php")
        blog = await asked(
            old,
            "POST",
            "/sites",
            domain="blog.example.com",
            type="wordpress",
            admin_email="ada@example.com",
            title="Ada",
        )
        await settled(old)
        sites["blog.example.com"] = await asked(old, "GET", f"/sites/{blog['id']}")
        certificate = self_signed(tmp_path, ["php.example.com"])
        await asked(
            old,
            "PUT",
            f"/sites/{sites['php.example.com']['id']}/ssl",
            certificate=certificate.certificate.read_text(),
            key=certificate.key.read_text(),
        )
        script = home_of(old, sites["php.example.com"]) / "public" / "index.php"
        script.write_text("<?php echo 6 * 7;")
        script.with_name("index.html").unlink(missing_ok=True)
        os.chown(script, FIRST_UID + sites["php.example.com"]["number"], FIRST_UID + sites["php.example.com"]["number"])
        for site in sites.values():
            extra = home_of(old, site) / "private" / "data.bin"
            extra.write_bytes(os.urandom(100_000))
            os.chown(extra, FIRST_UID + site["number"], FIRST_UID + site["number"])
        owner = sites["php.example.com"]["owner_id"]
        token = (await asked(old, "POST", f"/users/{owner}/tokens", name="program", days=0))["token"]
        target = await asked(old, "POST", "/backups/targets/local", name="disk", path=str(disk))
        key = (await asked(old, "POST", "/recovery/key"))["recovery_key"]
        await old.visit("blog.example.com")  # It makes folders at the first one.
        month_of_uploads(home_of(old, sites["blog.example.com"]), FIRST_UID + blog["number"])
        page = (await old.visit("blog.example.com")).text
        for site in sites.values():
            await asked(old, "POST", f"/sites/{site['id']}/backups")
        await settled(old)
        shown = await shown_at(Serving("127.0.0.1", old.https_port), "php.example.com")
        await asked(old, "POST", "/recovery/manifest")
        await settled(old)
        trees = {domain: tree(home_of(old, site)) for domain, site in sites.items()}
        repositories = {each["domain"]: each["id"] for each in await asked(old, "GET", "/backups/keys")}
        broken = repositories["static.example.com"]
    pack = max((disk / broken / "data").rglob("*/*"), key=lambda each: each.stat().st_size)
    whole = pack.read_bytes()
    pack.chmod(0o600)
    pack.write_bytes(bytes(byte ^ 0xFF for byte in whole))

    async with open_panel_programs(folder=old.folder) as new:
        await new.start()
        target = await asked(new, "POST", "/backups/targets/local", name="disk", path=str(disk))
        found = await asked(new, "POST", "/recovery/discover", target=target["id"], recovery_key=key)
        await asked(new, "POST", "/recovery/run", target=target["id"], recovery_key=key)
        with trio.fail_after(60):
            while not (new.data / "recovery" / "staged").exists():
                await trio.sleep(0.005)  # The core does it.
        await new.core.kill()
        await new.start()
        interrupted: dict[str, dict[str, Any]] = {}
        for name, reached in MOMENTS.items():
            job_id = (await asked(new, "GET", "/recovery"))["recovered"]["job_id"]
            if interrupted:
                job_id = (await asked(new, "POST", "/recovery/run"))["id"]
            with trio.fail_after(120):
                while not await reached(new, job_id, repositories["blog.example.com"]):
                    assert (await asked(new, "GET", f"/jobs/{job_id}"))["ended_at"] is None, name
                    await trio.sleep(0.005)  # The core does it.
            await new.core.kill()
            await new.start()
            interrupted[name] = await asked(new, "GET", f"/jobs/{job_id}")
        began = trio.current_time()
        second = await ended(new, (await asked(new, "POST", "/recovery/run"))["id"])
        seconds = trio.current_time() - began
        pack.write_bytes(whole)
        third = await ended(new, (await asked(new, "POST", "/recovery/run"))["id"])
        came = {domain: tree(home_of(new, site)) for domain, site in sites.items()}
        own = await asked(new, "GET", "/sites?page_size=50", token)
        answers = {domain: (await new.visit(domain)).text for domain in sites}
        shown_again = await shown_at(Serving("127.0.0.1", new.https_port), "php.example.com")

    report_figure(f"{len(sites)} sites came back in {seconds:.0f} s")
    failed = [step["name"] for step in second["steps"] if step["status"] == "failed"]
    assert len(found["opened"]["sites"]) == len(sites)
    for name, job in interrupted.items():
        assert (job["status"], job["error"]["message"]) == ("failed", INTERRUPTED), name
        assert [step["name"] for step in job["steps"] if step["status"] == "failed"][-1].endswith(
            "_blog_example_com"
        ), name
    assert second["status"] == "failed"
    assert [name.rpartition("_static_")[2] for name in failed] == ["example_com", "report"], second
    assert third["status"] == "succeeded", third
    assert {site["domain"] for site in own["items"]} == set(sites)
    for domain in sites:
        assert came[domain] == trees[domain], domain
    assert answers["php.example.com"] == "42"
    assert without_ports(answers["blog.example.com"]) == without_ports(page)
    assert shown_again == shown


async def test_no_more_is_read_of_a_target_than_a_manifest_may_have(tmp_path: Path) -> None:
    """Whoever may write there may put there what would fill the disk of the server that looks at it."""
    password = tmp_path / "password"
    write_secret(password, "public")
    repository, restic = Repository(str(tmp_path / "repository"), password, (), {}), SystemRestic()
    file = tmp_path / "manifest.svc"
    file.write_bytes(os.urandom(3_000_000))
    await restic.init(Programs(), repository)
    snapshot = await restic.keep_file(Programs(), repository, file, ("a-tag",))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    await restic.restore(Programs(4_000_000), repository, snapshot, whole, file.name)
    with pytest.raises(ServiceError):
        await restic.restore(Programs(1_000_000), repository, snapshot, cut, file.name)

    assert (whole / file.name).read_bytes() == file.read_bytes()
    assert sum(path.stat().st_size for path in cut.rglob("*")) <= 1_000_000


async def settled(panel: PanelPrograms) -> None:
    """Every job has succeeded."""
    for job in (await asked(panel, "GET", "/jobs?page_size=100"))["items"]:
        done = await ended(panel, job["id"])
        assert done["status"] == "succeeded", done["error"]


def without_ports(page: str) -> str:
    """The new server listens on others."""
    return re.sub(r"(example\.com):[0-9]+", r"\1", page)


async def is_fetched(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """Its repository was begun."""
    return (panel.data / "backups" / "repositories" / repository).exists()


async def is_restored(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """What is in its backup comes beside the homes of sites. Of the other sites none gets there any more."""
    return (panel.data / "sites" / f".restore-{job_id}").exists()


async def is_compared(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """What was restored is what was backed up; its database is loaded next."""
    lines = await asked(panel, "GET", f"/jobs/{job_id}/log")
    return any("byte for byte" in line["message"] for line in lines)


MOMENTS = {"fetched": is_fetched, "restored": is_restored, "compared": is_compared}
"""Of the last site, in their order."""


def month_of_uploads(home: Path, uid: int) -> None:
    """The folder of this month's uploads, which WordPress makes whenever something first asks for it."""
    folder = home / "public" / "wp-content" / "uploads"
    for part in ("", *datetime.now(UTC).strftime("%Y %m").split()):
        folder /= part
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, uid, uid)


def home_of(panel: PanelPrograms, site: dict[str, Any]) -> Path:
    home: Path = panel.data / "sites" / site["account"]
    return home
