"""B14: every list with 100,000 machines, in every order and with every filter, against the same with 100.

    tools/bench lists [--machines 100000] [--database FOLDER] [--only vm. --only traffic.] [--role customer] [--all]

Two databases are filled by SQL (tests/support/large.py); with `--database` they are kept in FOLDER, where the next run
finds them and applies what migrations there are since. Each request goes through the whole application, in this
process and without a connection; the two take turns, and the shortest of seven counts, since what else the machine
does only adds.

Compared are pages of as many rows as the smaller database has for the request: its first page with the first of the
larger one, its last with the one in the middle (`deep`) and the last. Goal: at most 1.3 times.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit, urlunsplit

import trio
from rich.console import Console
from rich.table import Table

from svc.controller.catalogue import controller_registry
from svc.controller.realm import REALM
from svc.controller.services import Controller
from svc.identity.authenticate import Authentication
from svc.registry.operation import Operation
from svc_actors.sealing import Sealer
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, embedded, migrate
from svc_http.app import App, create_app
from tests.support import large
from tests.support.lists import lists, principals, sample_ids, variants

FEW: Final = 100
GOAL: Final = 1.3
TURNS: Final = 7
ENOUGH: Final = 0.4
"""Seconds after which a request that takes long is not asked again."""
# What is lost with the power another run makes again.
SETTINGS: Final = {"fsync": "off", "max_wal_size": "4GB"}

say = Console(stderr=True, highlight=False).print


@dataclass(frozen=True)
class Row:
    """One request: its time with few machines and with many, in seconds."""

    operation: str
    parameters: str
    page: str
    rows: int
    few: float
    many: float

    @property
    def ratio(self) -> float:
        return self.many / self.few


@dataclass(frozen=True)
class Side:
    """The application on one of the databases, and who asks it."""

    database: Database
    app: App
    token: str

    async def get(self, path: str, parameters: dict[str, Any]) -> tuple[float, Any]:
        """The seconds that the answer took, and the answer."""
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        sent: list[dict[str, Any]] = []
        requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            for request in requests:
                return request
            await trio.sleep_forever()
            raise AssertionError("it sleeps for ever")

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "https",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"bench"), (b"authorization", b"Bearer " + self.token.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("bench", 443),
            "extensions": {},
        }
        began = perf_counter()
        await cast(Any, self.app)(scope, receive, send)
        taken = perf_counter() - began
        body = json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
        if sent[0]["status"] != 200:
            raise RuntimeError(f"GET {path}?{query}: {sent[0]['status']} {body}")
        return taken, body


async def measure(machines: int, folder: Path, only: Sequence[str], role: str) -> list[Row]:
    async with embedded(folder / "postgresql", settings=SETTINGS) as url:
        for size in (FEW, machines):
            await ensure_filled(url, size)
        async with open_side(url, FEW, role) as few, open_side(url, machines, role) as many:
            return [row async for row in compared(few, many, only, role)]


async def ensure_filled(url: str, machines: int) -> None:
    """A database of this size, migrated to where this code is. A fill that was cut short is begun anew."""
    async with Database.open(url, size=1) as database:
        known = await database.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", _name(machines))
        if not known:
            say(f"filling with {machines:,} machines ...", style="dim")
            began = perf_counter()
            await database.execute("DROP DATABASE IF EXISTS filling")
            await database.execute("CREATE DATABASE filling")
            async with Database.open(_url(url, "filling"), size=1) as filling:
                await migrate(filling)
                async with large.indexes_later(filling):
                    await large.fill(filling, large.Size.of(machines))
                await filling.execute("VACUUM ANALYZE", timeout=600)
            await database.execute(f"ALTER DATABASE filling RENAME TO {_name(machines)}")
            say(f"filled in {perf_counter() - began:.0f} s", style="dim")
    async with Database.open(_url(url, _name(machines)), size=1) as database:
        if await migrate(database):
            await database.execute("VACUUM ANALYZE", timeout=600)


@asynccontextmanager
async def open_side(url: str, machines: int, role: str) -> AsyncIterator[Side]:
    async with Database.open(_url(url, _name(machines)), size=2) as database:
        administrator, customer = await principals(database)
        token = new_secret(REALM.token_prefix)
        await database.execute(
            "INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes) VALUES ($1, 'xxxx', $2, $3, $4)",
            fingerprint(token),
            (administrator if role == "administrator" else customer).user_id,
            f"bench {token[-8:]}",
            ["admin"] if role == "administrator" else ["read"],
        )
        services = SimpleNamespace(
            database=database,
            events=None,
            sealer=Sealer(bytes(32)),
            realm=REALM,
            gateway=SimpleNamespace(heartbeat=lambda node_id: None, online=lambda: frozenset()),
        )
        authenticator = Authentication(database, REALM)
        origins = ("https://bench",)
        app = create_app(
            controller_registry(), cast(Controller, services), authenticator=authenticator, origins=origins
        )
        yield Side(database, app, token)


async def compared(few: Side, many: Side, only: Sequence[str], role: str) -> AsyncIterator[Row]:
    administrator, customer = await principals(many.database)
    principal = administrator if role == "administrator" else customer
    ids = {side: await sample_ids(side.database, (await principals(side.database))[1]) for side in (few, many)}
    for operation in lists():
        if not principal.has_access(operation.access) or (only and not operation.name.startswith(tuple(only))):
            continue
        variants_of = [variants(operation, principal, side.database, ids[side]) for side in (few, many)]
        wanted = [[variant async for variant in each] for each in variants_of]
        for small, big in zip(*wanted, strict=True):
            async for row in rows_of(operation, few, small, many, big):
                yield row


async def rows_of(
    operation: Operation[Any, Any, Any], few: Side, small: dict[str, Any], many: Side, big: dict[str, Any]
) -> AsyncIterator[Row]:
    """The first page, and where the list has more of them, the one in the middle and the last."""
    path, small = _address(operation, small)
    other, big = _address(operation, big)
    said = " ".join(f"{name}={value}" for name, value in big.items())
    _, first = await few.get(path, small)
    if "pages" not in first:
        yield Row(operation.name, said, "", 0, *await turns(few, path, small, many, other, big))
        return
    rows = max(1, len(first["items"]))
    _, whole = await many.get(other, big | {"page_size": rows})
    last = max(1, first["total"] // rows)
    pages = {"first": (1, 1), "deep": (last, whole["pages"] // 2), "last": (last, whole["total"] // rows)}
    for page, (of_few, of_many) in pages.items():
        if page != "first" and of_many <= 1:
            continue
        ours = big | {"page_size": rows, "page": of_many}
        peer = small | {"page_size": rows, "page": of_few}
        yield Row(operation.name, said, page, rows, *await turns(few, path, peer, many, other, ours))


async def turns(
    few: Side, path: str, small: dict[str, Any], many: Side, other: str, big: dict[str, Any]
) -> tuple[float, float]:
    """The shortest of both, after one each that is not counted: it prepares statements and reads pages in."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS + 1):
        for times, side, at, parameters in ((found[0], few, path, small), (found[1], many, other, big)):
            times.append((await side.get(at, parameters))[0])
        if sum(found[1]) > ENOUGH and len(found[1]) > 2:
            break
    return min(found[0][1:]), min(found[1][1:])


def _address(operation: Operation[Any, Any, Any], variant: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path with what belongs into it, and the parameters of the query."""
    path = operation.route.path.replace("{id}", str(variant.get("id", "")))
    return f"/api/v1{path}", {name: value for name, value in variant.items() if name != "id"}


def _name(machines: int) -> str:
    return f"machines_{machines}"


def _url(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


@contextmanager
def kept(folder: str | None) -> Iterator[Path]:
    """The folder that was asked for, or one that goes at the end."""
    path = Path(folder or tempfile.mkdtemp(prefix="svc-lists-", dir="/var/lib"))
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
    try:
        yield path
    finally:
        if folder is None:
            shutil.rmtree(path, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench lists", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--machines", type=int, default=100_000)
    parser.add_argument("--database", metavar="FOLDER", help="keep the filled databases here")
    parser.add_argument("--only", action="append", default=[], metavar="PREFIX", help="of operations, such as vm.list")
    parser.add_argument("--role", choices=("administrator", "customer"), default="administrator")
    parser.add_argument("--all", action="store_true", help="print every request, not only those that miss the goal")
    options = parser.parse_args(arguments)
    began = perf_counter()
    with kept(options.database) as folder:
        rows = trio.run(measure, options.machines, folder, options.only, options.role)
    report(rows, every=options.all)
    say(f"all of it took {perf_counter() - began:.0f} s", style="dim")


def report(rows: Sequence[Row], *, every: bool) -> None:
    console = Console(highlight=False, width=160)
    table = Table(box=None, pad_edge=False)
    for heading in ("list", "request", "page", "rows", "few, ms", "many, ms", "ratio"):
        table.add_column(heading, justify="left" if heading in ("list", "request", "page") else "right")
    for row in sorted(rows, key=lambda row: -row.ratio):
        if every or row.ratio > GOAL:
            times = f"{row.few * 1e3:.1f}", f"{row.many * 1e3:.1f}", f"{row.ratio:.2f}"
            table.add_row(row.operation, row.parameters, row.page, str(row.rows), *times)
    console.print(table)
    missed = sum(row.ratio > GOAL for row in rows)
    console.print(f"B14 {len(rows)} requests; {missed} took more than {GOAL} times as long as with {FEW} machines")


if __name__ == "__main__":
    main()
