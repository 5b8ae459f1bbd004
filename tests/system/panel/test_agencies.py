"""An agency's account comes to a real server (nginx, PHP, MariaDB, Knot): of each line that the plan says before, it is
looked at what happened, and the outcome has nothing that the plan did not say."""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dns.asyncquery
import dns.message
import httpx
import pytest
import trio

from tests.support import agencies
from tests.support.agencies import DKIM, LOGIN, OLD, PASSWORD, PIXEL, Certified, Hosted
from tests.support.figures import report_figure
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FORMATS: Final[dict[str, Callable[[Sequence[Hosted], Certified], bytes]]] = {
    "cpanel": agencies.cpanel,
    "directadmin": agencies.directadmin,
}
OWN: Final = "127.0.0.1"


@pytest.fixture
async def panel() -> AsyncIterator[PanelPrograms]:
    async with open_panel_programs() as programs:
        await programs.start()
        await programs.customer()
        yield programs


@dataclass(frozen=True)
class Line:
    """A line of the plan, and what happened; `surprise`: it is not what was said."""

    kind: str
    name: str
    said: str
    happened: str
    surprise: bool

    def __str__(self) -> str:
        return f"{'!' if self.surprise else ' '} {self.kind} | {self.name} | {self.said} | {self.happened}"


async def ended(client: httpx.AsyncClient, job_id: int) -> dict[str, Any]:
    with trio.fail_after(300):
        while True:
            job: dict[str, Any] = (await client.get(f"/jobs/{job_id}")).json()
            if job["status"] not in ("queued", "running"):
                return job
            await trio.sleep(0.1)  # It is done outside of this process.


async def read(client: httpx.AsyncClient, archive: bytes) -> str:
    """The path of the import, when its archive was read."""
    wanted = {"name": "backup.tar.gz", "size": len(archive), "owner_email": "ada@example.com"}
    began = (await client.post("/imports/upload", json=wanted)).json()
    path, size = f"/imports/{began['id']}", began["chunk_bytes"]
    for offset in range(0, len(archive), size):
        part = base64.b64encode(archive[offset : offset + size]).decode()
        await client.put(f"{path}/upload", json={"offset": offset, "data_base64": part})
    answer = await client.post(f"{path}/upload/finish", json={"sha256": hashlib.sha256(archive).hexdigest()})
    job = await ended(client, answer.json()["job_id"])
    assert job["status"] == "succeeded", job
    return path


class Agency:
    """An account that was imported, and what can be seen of it here."""

    def __init__(
        self, panel: PanelPrograms, root: httpx.AsyncClient, sites: Sequence[Hosted], certificates: Certified
    ) -> None:
        self.panel, self.root, self.certificates = panel, root, certificates
        self.hosted = {site.domain: site for site in sites}
        self.known: dict[str, dict[str, Any]] = {}
        self.certified: set[str] = set()
        self.trust = ssl.create_default_context(cadata=certificates.trusted)

    async def look(self, plan: Sequence[dict[str, Any]]) -> None:
        found = (await self.root.get("/sites?page_size=200")).json()["items"]
        self.known = {site["domain"]: site for site in found}
        self.certified = {self.known[item["name"]]["account"] for item in plan if item["kind"] == "certificate"}

    async def visit(self, domain: str, path: str = "/", **more: Any) -> httpx.Response:
        """By HTTPS, if the archive had a certificate for it."""
        https = self.known[domain]["account"] in self.certified
        site = f"https://{OWN}:{self.panel.https_port}" if https else f"http://{OWN}:{self.panel.http_port}"
        more |= {"headers": {"Host": domain}, "extensions": {"sni_hostname": domain}}
        async with httpx.AsyncClient(base_url=site, verify=self.trust, timeout=60) as visitor:
            return await visitor.request("POST" if "data" in more or "files" in more else "GET", path, **more)

    async def answers(self, name: str, type_: str) -> set[str]:
        question = dns.message.make_query(f"{name}.", type_)
        answer = await dns.asyncquery.tcp(question, OWN, port=self.panel.dns_port, timeout=60)
        return {rdata.to_text() for rrset in answer.answer for rdata in rrset}

    async def things(self, domain: str, what: str) -> Any:
        return (await self.root.get(f"/sites/{self.known[domain]['id']}/{what}")).json()

    def home(self, domain: str) -> Path:
        return self.panel.data / "sites" / str(self.known[domain]["account"])

    async def happened(self, item: dict[str, Any]) -> Line:
        look = getattr(self, f"_{item['kind']}", None)
        seen, fits = ("nothing of it is here", True) if look is None else await look(item)
        return Line(item["kind"], item["name"], f"{item['action']}: {item['reason']}", seen, not fits)

    async def _site(self, item: dict[str, Any]) -> tuple[str, bool]:
        hosted, site = self.hosted[item["name"]], self.known[item["name"]]
        front = await self.visit(hosted.domain)
        seen = f"{site['status']}, / is {front.status_code}"
        if "suspended" in item["reason"]:
            return seen, hosted.closed and (site["status"], front.status_code) == ("suspended", 503)
        return seen, not hosted.closed and site["status"] == "active" and hosted.page in front.text

    async def _alias(self, item: dict[str, Any]) -> tuple[str, bool]:
        answer = await self.panel.visit(item["name"])
        of = item["reason"].removeprefix("a name of ")
        there = item["name"] in self.known[of]["aliases"]
        wanted = 503 if self.hosted[of].closed else 200
        return f"a name of its site: {there}; / is {answer.status_code}", there and answer.status_code == wanted

    async def _php(self, item: dict[str, Any]) -> tuple[str, bool]:
        version = (await self.things(item["name"], "php"))["version"]
        return f"PHP {version}", f"PHP {version}" in item["reason"] or f"it gets {version}" in item["reason"]

    async def _files(self, item: dict[str, Any]) -> tuple[str, bool]:
        name = item["name"].rpartition("/")[2]
        having = [domain for domain in self.hosted if (self.home(domain) / name).exists()]
        if "placed next to public/" in item["reason"]:
            of = next(site.domain for site in self.hosted.values() if site.application == name)
            there = all((self.home(of) / file).is_file() for file in self.hosted[of].beside)
            return f"all of it is in the home of {of}: {there}", there
        return f"{name} is in {having or 'no home'}", bool(having) == (item["action"] != "leave_out")

    async def _database(self, item: dict[str, Any]) -> tuple[str, bool]:
        of = item["reason"].removeprefix("of ").partition(",")[0]
        found = (await self.root.get("/databases?page_size=200")).json()["items"]
        names = [each["name"] for each in found if each["domain"] == of]
        wanted = self.hosted[of].database == item["name"]
        return f"{', '.join(names)} of {of}", wanted and len(names) == 1

    async def _database_user(self, item: dict[str, Any]) -> tuple[str, bool]:
        users = (await self.root.get("/database-users?page_size=200")).json()
        label = item["reason"].partition("called ")[2].partition(" ")[0]
        names = [each["name"] for each in users["items"] if each["name"].endswith(f"_{label}")]
        return f"users here: {', '.join(names)}", bool(names)

    async def _configuration(self, item: dict[str, Any]) -> tuple[str, bool]:
        if item["name"] in self.hosted:
            rules = await self.things(item["name"], "htaccess")
            return f"ready: {rules['ready']}", rules["ready"] == (item["action"] != "leave_out")
        if "keeps uploads" in item["reason"]:
            domain, _, folder = item["name"].partition("/")
            program = self.home(domain) / "public" / folder / "program.php"
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("<?php echo 'run';")
            answer = await self.visit(domain, f"/{folder}/program.php")
            return f"a program there is {answer.status_code}", answer.status_code in (403, 404)
        file = item["name"].partition(" (")[0].rpartition("/")[2]
        database = item["reason"].partition("(")[2].partition(")")[0]
        of = next(site.domain for site in self.hosted.values() if site.database == database)
        home = self.home(of)
        text = next(path for path in (home / "public" / file, home / file) if path.is_file()).read_text()
        written = f"s{self.known[of]['number']}_" in text and "old-Secret" not in text and "@ROOT@" not in text
        return f"names the database of {of}: {written}", written and f"/home/{agencies.USER}" not in text

    async def _dns(self, item: dict[str, Any]) -> tuple[str, bool]:
        if item["action"] == "leave_out":
            zone = item["name"].rpartition(" of ")[2]
            names = item["name"].rpartition(" of ")[0].split(", ") if " of " in item["name"] else []
            found = [name for name in names if await self.answers(f"{name}.{zone}", "A")]
            return f"answered: {found}", not found
        zone = item["name"]
        seen = {
            "A": await self.answers(zone, "A"),
            "MX": {await self.exchange(answer) for answer in await self.answers(zone, "MX")},
            "SPF": {text for text in await self.answers(zone, "TXT") if "v=spf1" in text},
            "DKIM": {text.replace('" "', "") for text in await self.answers(f"default._domainkey.{zone}", "TXT")},
        }
        wanted = {
            "A": {OWN},
            "MX": {f"0 mail.{zone}. {OLD}"},
            "SPF": {f'"v=spf1 +a +mx +ip4:{OLD} ~all"'},
            "DKIM": {f'"{DKIM}"'},
        }
        wrong = [name for name in wanted if seen[name] != wanted[name]]
        return f"A, MX, SPF, DKIM are as they should{f' but for {wrong}' if wrong else ''}", not wrong

    async def exchange(self, exchange: str) -> str:
        addresses = await self.answers(exchange.split()[1].rstrip("."), "A")
        return f"{exchange} {' '.join(sorted(addresses))}"

    async def _certificate(self, item: dict[str, Any]) -> tuple[str, bool]:
        shown = await self.things(item["name"], "ssl")
        await self.visit(item["name"])  # By HTTPS, with this certificate alone to trust.
        return f"{shown['source']}, for {', '.join(shown['names'])}", item["name"] in shown["names"]

    async def _task(self, item: dict[str, Any]) -> tuple[str, bool]:
        tasks = [
            (domain, task) for domain in self.hosted for task in await self.things(domain, "schedules")
            if task["name"] != "wordpress-cron" and item["name"].startswith(f"{task['cron']} ")
        ]  # fmt: skip
        if item["action"] == "leave_out":
            return f"tasks like it: {len(tasks)}", not tasks
        having = [
            f"{task['kind']} {task['path']} of {domain}"
            for domain, task in tasks
            if item["reason"].startswith(f"a task of {domain},")
        ]
        return "; ".join(having), len(having) == 1 and item["reason"].endswith(having[0].partition(" of ")[0])


@pytest.mark.parametrize("format", FORMATS)
async def test_no_line_of_the_plan_is_a_surprise(panel: PanelPrograms, tmp_path: Path, format: str) -> None:
    sites = agencies.six("agency.example")
    certificates = agencies.certified(sites, tmp_path)
    began = time.monotonic()
    async with panel.client() as root:
        path = await read(root, FORMATS[format](sites, certificates))
        surveyed = time.monotonic()
        plan = (await root.get(path)).json()["plan"]
        job = await ended(root, (await root.post(f"{path}/apply", json={})).json()["id"])
        applied = time.monotonic()
        agency = Agency(panel, root, sites, certificates)
        await agency.look(plan)
        table = [await agency.happened(item) for item in plan]
        notes = (await root.get(path)).json()["notes"]
        signed_in, refused, uploaded = await used(agency)

    report_figure(
        f"an agency's account of {len(sites)} sites from {format}: read in {surveyed - began:.1f} s, "
        f"applied in {applied - surveyed:.1f} s, {len(plan)} lines of its plan"
    )
    assert job["status"] == "succeeded", job
    assert [str(line) for line in table if line.surprise] == []
    assert notes == []
    assert sorted(agency.known) == sorted(agency.hosted)
    having = {site.domain for site in sites if site.database is not None}
    assert (signed_in, refused, uploaded) == (having, having, having)


async def used(agency: Agency) -> tuple[set[str], set[str], set[str]]:
    """The sites that let their user in, that refuse a wrong password, and that show what was uploaded and was there."""
    signed_in, refused, uploaded = set(), set(), set()
    for domain, site in agency.hosted.items():
        if site.uploads is None:
            continue
        right = await agency.visit(domain, "/login.php", data={"name": LOGIN, "password": PASSWORD})
        wrong = await agency.visit(domain, "/login.php", data={"name": LOGIN, "password": "x"})
        await agency.visit(domain, "/upload.php", files={"file": ("new.png", PIXEL)})
        shown = [await agency.visit(domain, f"/{site.uploads}/{name}") for name in ("bild.png", "new.png")]
        signed_in |= {domain} if right.text == "welcome" else set()
        refused |= {domain} if wrong.status_code == 403 else set()
        uploaded |= {domain} if [answer.content for answer in shown] == [PIXEL, PIXEL] else set()
    return signed_in, refused, uploaded
