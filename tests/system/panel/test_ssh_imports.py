"""A site comes from a real SSH server: its files byte for byte, its database by a dump, and no secret to be seen."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from svc_actors.webhooks.settings import NETWORKS_VARIABLE
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import DATABASE, MAIN
from tests.support.panel_programs import PanelPrograms, shared_panel_programs
from tests.support.processes import command_lines
from tests.support.sshd import Sshd, open_sshd

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SECRET: Final = "kept-to-itself-7f3a"
TRANSFERRED: Final = "transferred.example"
"""The domain of the site that comes without a shell."""
DUMPS: Final = """#!/bin/sh
cat > "$(dirname "$0")/read"
printf '%s\\n' "$*" > "$(dirname "$0")/arguments"
cat "$(dirname "$0")/dump.sql"
"""
"""Stands for mariadb-dump on the other host."""


@pytest.fixture(scope="module")
def panel() -> Iterator[PanelPrograms]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(NETWORKS_VARIABLE, "127.0.0.0/8")
        with shared_panel_programs() as programs:
            trio.run(programs.customer)
            yield programs


@pytest.fixture
async def old_host(tmp_path: Path) -> AsyncIterator[Sshd]:
    async with open_sshd(tmp_path / "sshd") as sshd:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "mariadb-dump").write_text(DUMPS)
        (tools / "mariadb-dump").chmod(0o755)
        (tools / "dump.sql").write_text(foreign.DUMP)
        with (sshd.folder / "config").open("a") as configuration:
            configuration.write(f"SetEnv PATH={tools}:/usr/bin:/bin\n")
        root = tmp_path / "www"
        tree = foreign.model(500)[MAIN]
        for name, content in tree.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        for name, target in {**tree.links, "out": "/etc/passwd"}.items():
            os.symlink(target, root / name)
        await sshd.start()
        yield sshd


async def fetched(panel: PanelPrograms, asked: dict[str, Any], seen: list[str]) -> tuple[dict[str, Any], str]:
    """The import, and the log of its job; into `seen` comes what runs meanwhile."""
    async with panel.client() as root:
        shown = (await root.post("/imports/ssh", json=asked)).json()
        confirmed = shown["host_keys"][0]["fingerprint"]
        begun = (await root.post("/imports/ssh", json={**asked, "host_key": confirmed})).json()["begun"]
        with trio.fail_after(120):
            while (imported := (await root.get(f"/imports/{begun['id']}")).json())["status"] in (
                "fetching",
                "analysing",
            ):
                seen.extend(command.decode(errors="replace") for command in command_lines().values())
                await trio.sleep(0.05)  # It is done outside of this process.
        log = (await root.get(f"/jobs/{begun['job_id']}/log?after=0")).text
    return imported, log


async def site_of(root: httpx.AsyncClient, domain: str) -> dict[str, Any]:
    [site] = [each for each in (await root.get("/sites")).json()["items"] if each["domain"] == domain]
    found: dict[str, Any] = site
    return found


async def test_a_site_comes_by_ssh_and_no_secret_is_seen(panel: PanelPrograms, old_host: Sshd, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": old_host.port,
        "user": "root",
        "domain": MAIN,
        "folders": [str(tmp_path / "www")],
        "private_key": await old_host.new_key(),
        "database": DATABASE,
        "database_user": "ada_wp",
        "database_password": SECRET,
        "owner_email": "ada@example.com",
    }
    seen: list[str] = []
    async with panel.client() as root:
        shown = (await root.post("/imports/ssh", json=asked)).json()
        wrong = await root.post("/imports/ssh", json={**asked, "host_key": f"SHA256:{'A' * 43}"})
        imported, log = await fetched(panel, asked, seen)
        assert imported["status"] == "ready", imported
        job = (await root.post(f"/imports/{imported['id']}/apply", json={})).json()
        with trio.fail_after(120):
            while (job := (await root.get(f"/jobs/{job['id']}")).json())["status"] in ("queued", "running"):
                await trio.sleep(0.1)  # It is done outside of this process.
        assert job["status"] == "succeeded", job
        site = await site_of(root, MAIN)
        # The site as it is served here stands for the old host.
        compared = {"address": "127.0.0.1", "https": False, "port": panel.http_port}
        job = (await root.post(f"/sites/{site['id']}/migration/verify", json=compared)).json()
        with trio.fail_after(120):
            while (job := (await root.get(f"/jobs/{job['id']}")).json())["status"] in ("queued", "running"):
                await trio.sleep(0.1)  # It is done outside of this process.
        report = (await root.get(f"/sites/{site['id']}/migration/verify")).json()

    rows = ("rows_before", "rows_imported", "rows", "changed")
    assert [(each["table"], *(each[name] for name in rows)) for each in report["tables"]] == [
        ("wp_options", 2, 2, 2, False)
    ]
    assert (report["php"]["before"], report["php"]["missing"]) == (site["php"]["version"], [])
    assert {check["name"]: check["ok"] for check in report["checks"]}.items() >= {"rows": True, "php": True}.items()
    assert shown["begun"] is None
    assert [key["type"] for key in shown["host_keys"]] == ["ssh-ed25519"]
    assert wrong.status_code == 409
    public = panel.data / "sites" / site["account"] / "public"
    for name, content in foreign.model(500)[MAIN].files.items():
        assert name == "wp-config.php" or (public / name).read_bytes() == content
    assert os.readlink(public / "latest") == "wp-content/uploads"
    assert not (public / "out").is_symlink()
    assert f'password="{SECRET}"' in (tmp_path / "tools" / "read").read_text()
    assert SECRET not in (tmp_path / "tools" / "arguments").read_text()
    for place in (*seen, log):
        assert SECRET not in place
        assert "OPENSSH PRIVATE KEY" not in place
    assert left_on_disk(panel.data) == []


async def test_a_site_comes_from_an_account_that_may_only_transfer_files(
    panel: PanelPrograms, old_host: Sshd, tmp_path: Path
) -> None:
    old_host.kill()
    with (old_host.folder / "config").open("a") as configuration:
        configuration.write("ForceCommand internal-sftp\n")
    await old_host.start()
    asked: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": old_host.port,
        "user": "root",
        "domain": TRANSFERRED,
        "folders": [str(tmp_path / "www")],
        "private_key": await old_host.new_key(),
        "owner_email": "ada@example.com",
    }

    refused, _ = await fetched(panel, {**asked, "database": DATABASE}, [])
    imported, log = await fetched(panel, asked, [])
    async with panel.client() as root:
        job = (await root.post(f"/imports/{imported['id']}/apply", json={})).json()
        with trio.fail_after(120):
            while (job := (await root.get(f"/jobs/{job['id']}")).json())["status"] in ("queued", "running"):
                await trio.sleep(0.1)  # It is done outside of this process.
        assert job["status"] == "succeeded", job
        site = await site_of(root, TRANSFERRED)

    assert refused["status"] == "failed"
    assert "may only transfer files" in refused["problem"]
    assert "read by SFTP" in log
    public = panel.data / "sites" / site["account"] / "public"
    for name, content in foreign.model(500)[MAIN].files.items():
        assert name == "wp-config.php" or (public / name).read_bytes() == content
    assert os.readlink(public / "latest") == "wp-content/uploads"
    assert not (public / "out").is_symlink()
    assert left_on_disk(panel.data) == []


async def test_an_account_that_is_not_let_in_is_told_so(panel: PanelPrograms, old_host: Sshd) -> None:
    asked: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": old_host.port,
        "user": "root",
        "domain": MAIN,
        "folders": ["/srv"],
        "private_key": await old_host.new_key(),
        "owner_email": "ada@example.com",
    }
    old_host.let_in(f"ssh-ed25519 {'A' * 68}")

    refused, _ = await fetched(panel, asked, [])

    assert refused["status"] == "failed"
    assert "rejects the credentials of the account" in refused["problem"]


def left_on_disk(data: Path) -> list[Path]:
    """Files beneath the panel's folder, its logs included, that have a secret of the other host."""
    secrets = (SECRET.encode(), b"OPENSSH PRIVATE KEY")
    return [
        path
        for path in data.rglob("*")
        if path.parent != data / "sftp"  # The panel's own host keys.
        and not path.is_symlink()
        and stat.S_ISREG(path.lstat().st_mode)
        and path.stat().st_size < 1 << 20
        and path.suffix not in (".pem", ".key")
        and any(secret in path.read_bytes() for secret in secrets)
    ]
