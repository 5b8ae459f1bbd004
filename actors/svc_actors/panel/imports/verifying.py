"""The job that compares a site here with its old host, and reports whether visitors may be sent here.

The old host is requested at the given address, which is vetted like every server that a customer names
(`svc_common.outbound`); the web server here is requested as visitors do. Only GET requests are sent, for pages and
static files. The result is a report, which is kept until the next one.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import httpcore
import trio

from svc_actors.panel.certificates import read_site_certificate
from svc_actors.panel.files import site_folder
from svc_actors.panel.htaccess import blocking_lines
from svc_actors.panel.imports.applied import choices_of
from svc_actors.panel.imports.comparing import Answer, are_pages, check, difference, difference_of_pages, is_asked
from svc_actors.panel.imports.contents import NOT_LOADED, Contents, served_by
from svc_actors.panel.imports.plan import task_of
from svc_actors.panel.imports.records import read_import
from svc_actors.panel.imports.zone_checks import ZoneChecks
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database, Queryable, Transaction
from svc_common.errors import ServiceError, invalid, not_found, unavailable
from svc_common.outbound import AddressRefused, Outbound, VettedNetwork
from svc_webhost.archives.model import FoundSite, Kind, account_of
from svc_webhost.confined.protocol import ComparePages, ListFolder, ReadSitemap
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders

KIND: Final = "migration.verify"
STEPS: Final = ("compare",)
SECONDS: Final = 1800.0
MOST_URLS: Final = 500
_OF_SITEMAP: Final = 250
_MOST_FOLDERS: Final = 200
_MOST_LISTED: Final = 500
_MOST_WORDS: Final = 4 << 20
"""The most bytes of a page whose words are compared."""
_PARSING_SECONDS: Final = 30.0
_MOST_BODY: Final = 64 << 20
_ANSWER_SECONDS: Final = 20.0
_COMPARE_SECONDS: Final = 1200.0
"""Seconds for all URLs together: so even for a slow host there is a report of the pages that were compared, before the
job's own limit."""
_AT_ONCE: Final = 4
_NAMED: Final = 100
_HTTP_ERRORS: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError)


@dataclass(frozen=True)
class Report:
    address: str
    found: dict[str, Any]
    job_id: int
    created_at: datetime


@dataclass(frozen=True)
class SitesPorts:
    """The ports that visitors connect to."""

    http: int
    https: int


async def read_report(queryable: Queryable, site_id: UUID) -> Report:
    """Raises not_found."""
    row = await queryable.fetchrow("SELECT * FROM migration_reports WHERE site_id = $1", site_id)
    if row is None:
        raise not_found(
            "The site has not been compared yet.", hint="`svc site migration verify` compares it with its old host."
        )
    return Report(row["address"], row["report"], row["job_id"], row["created_at"])


class MigrationVerification:
    """The work of the job. Its parameters: `address`, `port` and `https` of the old host."""

    def __init__(
        self,
        database: Database,
        files: ConfinedFiles,
        folders: HostFolders,
        outbound: Outbound,
        ports: SitesPorts,
        contents: Contents,
        zones: ZoneChecks,
    ) -> None:
        self._database = database
        self._files = files
        self._folders = folders
        self._outbound = outbound
        self._ports = ports
        self._contents = contents
        self._zones = zones

    async def compare(self, run: JobRun) -> None:
        site = await read_site(self._database, run.site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        rows = await self._database.fetch("SELECT name FROM site_domains WHERE site_id = $1", site.id)
        names = frozenset(row["name"] for row in rows)
        certificate = await read_site_certificate(self._database, site.id)
        here = f"https://127.0.0.1:{self._ports.https}" if certificate.names else f"http://127.0.0.1:{self._ports.http}"
        address, port = run.parameters["address"], run.parameters["port"]
        scheme = "https" if run.parameters["https"] else "http"
        there = f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"
        async with _asking(site.domain, there, VettedNetwork(self._outbound)) as old, _asking(site.domain, here) as new:
            first = await old.answer("/")
            if first is None:
                raise unavailable(
                    f"The old host does not answer at {address}, port {port}; nothing was compared.",
                    hint="Give its address, and https or not, as it answers now.",
                )
            sitemap = await old.answer("/sitemap.xml")
            urls = dict.fromkeys(["/"])
            if sitemap is not None and sitemap.status == 200:
                urls |= dict.fromkeys(await self._sitemap(site, sitemap, names))
            async for path in self._tree(site):
                if len(urls) >= MOST_URLS:
                    break
                urls.setdefault(path)
            differences, unanswered = await self._differences(run, site, old, new, list(urls), names)
        checks = [
            check("pages", not differences, f"{len(differences)} of {len(urls)} addresses answer differently"),
            check("compared", not unanswered, f"the old host did not answer {unanswered} of {len(urls)} addresses"),
            check("status", site.status is SiteStatus.ACTIVE, f"the site is {site.status.value}"),
            check("certificate", bool(certificate.names), "the site has no certificate, and HTTPS is not answered"),
        ]
        imported, found = await self._imported(site, names)
        checks += imported
        php, php_checks = await self._contents.php(site, found, served_by(first.headers))
        checks += php_checks
        tables, table_checks = await self._contents.tables(site)
        checks += table_checks
        blocking = await blocking_lines(self._files, self._folders, self._database, site)
        checks.append(
            check("htaccess", not blocking, f"{len(blocking)} lines of .htaccess files have no equivalent here")
        )
        report = {
            "verdict": "ready" if all(each["ok"] for each in checks) else "blocked",
            "urls": len(urls),
            "differences": differences[:_NAMED],
            "checks": checks,
            "tables": tables,
            "php": php,
        }

        async def write(tx: Transaction) -> None:
            await tx.execute(
                """INSERT INTO migration_reports (site_id, address, report, job_id) VALUES ($1, $2, $3, $4)
                   ON CONFLICT (site_id) DO UPDATE
                   SET address = $2, report = $3, job_id = $4, created_at = now()""",
                *(site.id, address, report, run.id),
            )

        await run.transact(write)
        await run.log(f"{report['verdict']}: {len(differences)} of {len(urls)} addresses answer differently.")

    async def _differences(
        self, run: JobRun, site: SiteRow, old: _Asking, new: _Asking, urls: list[str], names: frozenset[str]
    ) -> tuple[list[dict[str, str]], int]:
        """The URLs with different answers, and how many URLs the old host did not answer, or not in time."""
        found: dict[str, str] = {}
        done = compared = 0
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def compare_url(path: str) -> None:
            nonlocal done, compared
            async with limit:
                before, now = await old.answer(path), await new.answer(path)
            if before is not None:
                compared += 1
                said = "no answer" if now is None else await self._difference(site, before, now, names)
                if said is not None:
                    found[path] = said
            done += 1
            if done % 50 == 0:
                await run.progress(100 * done / len(urls))

        with trio.move_on_after(_COMPARE_SECONDS):
            async with trio.open_nursery() as nursery:
                for path in urls:
                    nursery.start_soon(compare_url, path)
        named = [{"path": path[:500], "difference": found[path]} for path in urls if path in found]
        return named, len(urls) - compared

    async def _difference(self, site: SiteRow, old: Answer, new: Answer, names: frozenset[str]) -> str | None:
        said = difference(old, new, names)
        if said is not None or not are_pages(old, new):
            return said
        request = ComparePages(len(old.body))
        try:
            answer = await self._files.ask(
                site_folder(self._folders, site), request, old.body + new.body, seconds=_PARSING_SECONDS
            )
        except ServiceError as error:
            return f"its words could not be compared: {error}"
        return difference_of_pages(float(answer.result["similarity"]))

    async def _sitemap(self, site: SiteRow, sitemap: Answer, names: frozenset[str]) -> list[str]:
        request = ReadSitemap(sorted(names), _OF_SITEMAP)
        answer = await self._files.ask(
            site_folder(self._folders, site), request, sitemap.body, seconds=_PARSING_SECONDS
        )
        paths: list[str] = json.loads(answer.payload)
        return paths

    async def _tree(self, site: SiteRow) -> AsyncIterator[str]:
        """URLs of the files in the document root, folder by folder."""
        folder = site_folder(self._folders, site)
        waiting, looked = deque(["public"]), 0
        while waiting and looked < _MOST_FOLDERS:
            at, looked = waiting.popleft(), looked + 1
            try:
                listed = await self._files.ask(folder, ListFolder(at, 0, _MOST_LISTED))
            except ServiceError:
                continue
            for entry in json.loads(listed.payload):
                path = f"{at}/{entry['name']}"
                if entry["kind"] == "folder" and not entry["name"].startswith("."):
                    waiting.append(path)
                elif entry["kind"] == "file" and is_asked(entry["name"]):
                    yield quote(path.removeprefix("public"))

    async def _imported(self, site: SiteRow, names: frozenset[str]) -> tuple[list[dict[str, Any]], FoundSite | None]:
        """The content that the import of the site recorded, and the site's name in the import. `names` are the site's
        names here."""
        row = await self._database.fetchrow("SELECT import_id, domain FROM import_sites WHERE site_id = $1", site.id)
        if row is None:
            return [], None
        imported = await read_import(self._database, row["import_id"])
        account = account_of(imported.found or {})
        found = next((each for each in account.sites if each.domain == row["domain"]), None)
        if found is None:
            return [check("import", False, "its import no longer names the site", stops=False)], None
        checks = await self._zones.of(site.owner_id, names, account, choices_of(imported))
        left = [n for n, _ in enumerate(account.tasks) if task_of(account, n) is None]
        checks.append(check("tasks", not left, f"{len(left)} lines of its crontab are not tasks here", stops=False))
        databases = [each for each in account.databases if each.site == found.domain]
        held = await self._database.fetchval("SELECT count(*) FROM databases WHERE site_id = $1", site.id)
        checks.append(check("databases", held >= len(databases), f"it had {len(databases)} databases, and has {held}"))
        empty = [
            f"{note['name']} ({note['reason'].removeprefix(NOT_LOADED)})"
            for note in imported.outcome or ()
            if note["kind"] == Kind.DATABASE.value and note["reason"].startswith(NOT_LOADED)
            if note["name"] in {each.name for each in databases}
        ]
        checks.append(check("dumps", not empty, f"dumps that were not loaded: {', '.join(empty)}"[:400]))
        return checks, found


class _Asking:
    def __init__(self, pool: httpcore.AsyncConnectionPool, base: str, host: str) -> None:
        self._pool = pool
        self._base = base
        self._host = host

    async def answer(self, path: str) -> Answer | None:
        """The answer to one URL; None if there is none in time, or if it is too large to compare. Raises `invalid` for
        a URL that may not be requested."""
        extensions = {"sni_hostname": self._host, "timeout": dict.fromkeys(("connect", "read", "write", "pool"), 10.0)}
        headers = [("Host", self._host), ("User-Agent", "svc-migration-verify"), ("Accept-Encoding", "identity")]
        with trio.move_on_after(_ANSWER_SECONDS):
            try:
                async with self._pool.stream(
                    "GET", f"{self._base}{path}", headers=headers, extensions=extensions
                ) as answered:
                    beginning, size, digest = bytearray(), 0, hashlib.sha256()
                    async for block in answered.aiter_stream():
                        beginning += block[: _MOST_WORDS - len(beginning)]
                        size += len(block)
                        digest.update(block)
                        if size > _MOST_BODY:
                            return None
                    told = {name.decode().lower(): text.decode("latin-1") for name, text in answered.headers}
                    return Answer(answered.status, told, bytes(beginning), size, digest.digest())
            except AddressRefused as error:
                raise invalid(f"The old host cannot be queried: {error}.") from error
            except _HTTP_ERRORS:
                return None
        return None


@asynccontextmanager
async def _asking(host: str, base: str, network: httpcore.AsyncNetworkBackend | None = None) -> AsyncIterator[_Asking]:
    context = ssl.create_default_context()
    # TLS need not verify the certificate: the answers are compared, not trusted, and an old host may have lost its
    # certificate.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with httpcore.AsyncConnectionPool(
        ssl_context=context, network_backend=network, max_connections=_AT_ONCE, http2=False
    ) as pool:
        yield _Asking(pool, base, host)
