"""A server that is lost with all that it had, and comes back on a new one: real core, restic, nginx, PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.backups.places import write_secret
from svc_actors.panel.recovery.remote import Programs
from svc_common.errors import ServiceError
from svc_webhost.restic import Repository, SystemRestic
from tests.support.figures import report_figure
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.system.panel.lost_sites import (
    BLOG,
    CERTIFIED,
    DAMAGED,
    PASSWORDS,
    SITES,
    a_life,
    asked,
    ended,
    own_sites,
    page_of,
    shown,
    trees,
)

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


async def test_ten_sites_come_back_on_a_new_server_whatever_kills_its_core(disk: Path, tmp_path: Path) -> None:
    """One repository has a damaged pack at first; the core is killed while it becomes the lost server, and at several
    steps of a site that comes back."""
    async with open_panel_programs() as old:
        await old.start()
        lost = await a_life(old, disk, tmp_path)
    pack = max((disk / lost.repositories[DAMAGED] / "data").rglob("*/*"), key=lambda each: each.stat().st_size)
    whole = pack.read_bytes()
    pack.chmod(0o600)
    pack.write_bytes(bytes(byte ^ 0xFF for byte in whole))

    async with open_panel_programs(folder=old.folder) as new:
        await new.start()
        target = await asked(new, "POST", "/backups/targets/local", name="disk", path=str(disk))
        found = await asked(new, "POST", "/recovery/discover", target=target["id"], recovery_key=lost.key)
        await asked(new, "POST", "/recovery/run", target=target["id"], recovery_key=lost.key)
        with trio.fail_after(60):
            while not (new.data / "recovery" / "staged").exists():
                await trio.sleep(0.005)  # The core does it.
        await new.core.kill()
        await new.start()
        began = trio.current_time()
        interrupted: dict[str, dict[str, Any]] = {}
        for name, reached in MOMENTS.items():
            job_id = (await asked(new, "GET", "/recovery"))["recovered"]["job_id"]
            if interrupted:
                job_id = (await asked(new, "POST", "/recovery/run"))["id"]
            with trio.fail_after(120):
                while not await reached(new, job_id, lost.repositories[BLOG]):
                    assert (await asked(new, "GET", f"/jobs/{job_id}"))["ended_at"] is None, name
                    await trio.sleep(0.02)  # The core does it.
            await new.core.kill()
            await new.start()
            interrupted[name] = await asked(new, "GET", f"/jobs/{job_id}")
        second = await ended(new, (await asked(new, "POST", "/recovery/run"))["id"])
        seconds = trio.current_time() - began
        pack.write_bytes(whole)
        third = await ended(new, (await asked(new, "POST", "/recovery/run"))["id"])
        came = trees(new, lost.sites)
        pages = {domain: await page_of(new, domain, lost.authorities) for domain in SITES}
        certificates = await shown(new)
        by_token = {
            email: {site["domain"] for site in (await asked(new, "GET", "/sites?page_size=50", token))["items"]}
            for email, token in lost.tokens.items()
        }
        await new.start_web()
        by_password = {email: await own_sites(new, email) for email in PASSWORDS}

    report_figure(f"{len(SITES) - 1} sites came back in {seconds:.0f} s, with {len(MOMENTS)} kills between")
    own = {email: {domain for domain, (owner, _) in SITES.items() if owner == email} for email in PASSWORDS}
    assert {site["domain"] for site in found["opened"]["sites"]} == set(SITES)
    for name, job in interrupted.items():
        assert (job["status"], job["error"]["message"]) == ("failed", INTERRUPTED), name
        assert failed_steps(job) == [BLOG], name
    assert (second["status"], failed_steps(second)) == ("failed", [DAMAGED, "report"]), second
    assert third["status"] == "succeeded", third
    assert by_token == by_password == own
    for domain in SITES:
        assert came[domain] == lost.trees[domain], domain
        assert pages[domain] == lost.pages[domain], domain
        assert pages[domain].startswith("200 "), domain
    assert SITES[BLOG][1]["title"] in pages[BLOG]  # It is in the database alone.
    assert certificates == lost.certificates
    assert None not in certificates.values()
    assert len(set(certificates.values())) == len(CERTIFIED), "each is of its site alone"


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


def failed_steps(job: dict[str, Any]) -> list[str]:
    """By the domains of their sites."""
    domains = {domain.replace(".", "_"): domain for domain in SITES}
    names = [step["name"] for step in job["steps"] if step["status"] == "failed"]
    return [domains.get(re.sub("site_[0-9]+_", "", name), name) for name in names]


async def is_fetched(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """Its repository was begun."""
    return (panel.data / "backups" / "repositories" / repository).exists()


async def is_restored(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """What is in its backup comes beside the homes of sites: it is the first site of this job."""
    return (panel.data / "sites" / f".restore-{job_id}").exists()


async def is_compared(panel: PanelPrograms, job_id: int, repository: str) -> bool:
    """What was restored is what was backed up; its database is loaded next."""
    lines = await asked(panel, "GET", f"/jobs/{job_id}/log")
    return any("byte for byte" in line["message"] for line in lines)


MOMENTS = {"fetched": is_fetched, "restored": is_restored, "compared": is_compared}
"""Of the second site, in their order. The first one has come back by then, the others wait."""
