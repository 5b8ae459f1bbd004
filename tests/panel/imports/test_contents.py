"""What came with a site is compared with what is here: rows of its tables, its PHP and the extensions of that."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

import pytest

from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_webhost.archives.extensions import extension_names
from svc_webhost.databases import DatabaseName
from tests.panel.imports.test_verification import Host, hosts
from tests.panel.imports.world import FolderAccounts, World
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import DATABASE, MAIN
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_php import RecordedExtensions
from tests.support.recorded_tables import RecordedTables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of sites are other accounts'")


@dataclass
class CountedTables(RecordedTables):
    """`counted`: rows and checksum by table, whatever is in the database."""

    counted: dict[str, str] = field(default_factory=lambda: {"wp_options": "2 9 111"})

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        return {table: words for table, words in self.counted.items() if table in tables}


@dataclass
class Moved:
    world: World
    old: Host
    tables: CountedTables

    @property
    def extensions(self) -> RecordedExtensions:
        return cast(RecordedExtensions, self.world.panel.host.php_extensions)

    async def come(self, files: dict[str, bytes] | None = None) -> dict[str, Any]:
        """The model site, imported; the job."""
        sites = foreign.model()
        sites[MAIN].files.update(files or {})
        return await self.world.applied(await self.world.uploaded(foreign.cpanel(sites)))

    async def report(self) -> dict[str, Any]:
        site = await self.world.site(MAIN)
        wanted = {"address": "127.0.0.1", "https": False, "port": self.old.port}
        job = (await self.world.ada.post(f"/sites/{site['id']}/migration/verify", wanted)).json()
        ended = await self.world.job(job["id"])
        assert ended["status"] == "succeeded", ended
        report: dict[str, Any] = (await self.world.ada.get(f"/sites/{site['id']}/migration/verify")).json()
        return report


def reasons(report: dict[str, Any], *, blocking: bool) -> dict[str, str]:
    """By check: of those that block, or of those that are only named."""
    return {
        check["name"]: check["reason"] for check in report["checks"] if check["reason"] and check["ok"] is not blocking
    }


@pytest.fixture
async def moved(panel_database: Database, tmp_path: Path) -> AsyncIterator[Moved]:
    played = recorded_host()
    tables = CountedTables(played.databases)
    host = replace(played, accounts=FolderAccounts(tmp_path / "sites"), tables=tables)
    allowed = WebhookSettings(networks=(ip_network("127.0.0.0/8"),))
    async with (
        hosts() as (old, new),
        open_panel(
            panel_database, tmp_path, host, webhooks=allowed, sites_http_port=new.port, loops=["jobs", "web server"]
        ) as panel,
    ):
        old.pages = new.pages = {"/": (200, b"<p>shop</p>")}
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        yield Moved(World(panel, ada, bob, await panel.administrator(), tmp_path), old, tables)


async def test_rows_that_came_whole_are_shown_beside_those_of_the_dump(moved: Moved) -> None:
    await moved.come()
    report = await moved.report()

    assert report["tables"] == [
        {
            "database": DATABASE,
            "table": "wp_options",
            "rows_before": 2,
            "rows_imported": 2,
            "rows": 2,
            "changed": False,
        }
    ]
    assert {"rows", "tables"}.isdisjoint(reasons(report, blocking=True))
    assert "written" not in reasons(report, blocking=False)


async def test_rows_that_got_lost_on_the_way_block_and_are_named_when_they_are(moved: Moved) -> None:
    moved.tables.counted["wp_options"] = "1 9 111"
    job = await moved.come()
    log = (await moved.world.ada.get(f"/jobs/{job['id']}/log")).json()
    moved.tables.counted["wp_options"] = "2 9 112"  # Somebody has written one more: it is another one.
    report = await moved.report()

    assert any("wp_options: 1 of 2 rows were imported" in line["message"] for line in log)
    assert report["verdict"] == "blocked"
    assert f"{DATABASE}.wp_options (1 of 2)" in reasons(report, blocking=True)["rows"]


async def test_rows_that_were_written_here_since_are_named_and_block_nothing(moved: Moved) -> None:
    await moved.come()
    moved.tables.counted["wp_options"] = "5 9 222"
    report = await moved.report()

    assert "rows" not in reasons(report, blocking=True)
    assert "2 rows then, 5 now" in reasons(report, blocking=False)["written"]
    assert [(one["rows"], one["changed"]) for one in report["tables"]] == [(5, True)]


async def test_a_table_that_is_not_here_any_more_blocks(moved: Moved) -> None:
    await moved.come()
    moved.tables.counted.clear()
    report = await moved.report()

    assert "wp_options" in reasons(report, blocking=True)["tables"]
    assert report["tables"][0]["rows"] is None


async def test_extensions_that_the_sites_files_ask_for_and_php_lacks_block(moved: Moved) -> None:
    files = {
        "composer.json": b"""{"require": {"php": ">=8", "ext-json": "*", "ext-Intl": "*"},
                              "require-dev": {"ext-xdebug": "*"}}""",
        ".user.ini": b'memory_limit = 1G\n;extension=never.so\nextension="/opt/x/redis.so"\nzend_extension = opcache\n',
        "vendor/some/library/composer.json": b'{"require": {"ext-ldap": "*"}}',
    }
    await moved.come(files)
    before = await moved.report()
    await moved.extensions.enable("8.2", "intl", cast(Any, None))
    await moved.extensions.enable("8.2", "redis", cast(Any, None))
    after = await moved.report()

    assert before["php"] == {"before": "8.2", "now": "8.2", "missing": ["intl", "redis"], "others_missing": []}
    assert "intl, redis" in reasons(before, blocking=True)["extensions"]
    assert after["php"]["missing"] == []
    assert "extensions" not in reasons(after, blocking=True)


async def test_the_version_that_the_old_host_names_counts_before_what_its_archive_says(moved: Moved) -> None:
    await moved.come()
    moved.old.served_by = "PHP/7.4.33"
    report = await moved.report()

    assert (report["php"]["before"], report["php"]["now"]) == ("7.4", "8.2")
    assert reasons(report, blocking=True)["php"] == "it had PHP 7.4 and now has 8.2"


def test_one_extension_has_one_name_however_it_is_written() -> None:
    assert extension_names(["Zend OPcache", "opcache.so", "ext-zend-opcache".removeprefix("ext-"), "php_curl"]) == [
        "curl",
        "opcache",
    ]


async def test_a_dump_that_the_old_host_did_not_finish_fails_alone_and_blocks(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "DUMP", foreign.DUMP.partition("INSERT")[0])
    job = await moved.come()
    log = (await moved.world.ada.get(f"/jobs/{job['id']}/log")).json()
    report = await moved.report()

    assert job["status"] == "succeeded", job
    assert any(f"database {DATABASE}: its dump was not loaded: It is incomplete" in line["message"] for line in log)
    assert moved.world.mariadb.loaded == []
    assert report["verdict"] == "blocked"
    assert f"{DATABASE} (It is incomplete" in reasons(report, blocking=True)["dumps"]
