"""A customer attacks through the panel's own operations: while she orders exports, backups, staging and restorations of
her site, her clients exchange tables and views of her databases without a pause. A view calls her function with the
rights of who reads it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.databases import EngineKind
from tests.support.databases import Answer, ask
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARIADB, POSTGRESQL = EngineKind.MARIADB, EngineKind.POSTGRESQL
SECRET = "VICTIM-CARD-4711"
EXCHANGED = 40
CLIENTS = 4
SECONDS = 600
"""For all rounds, which take some 40 on two idle cores. Nothing is promised of it: no test may wait for ever."""

FUNCTION = """DELIMITER ;;
CREATE FUNCTION f() RETURNS INT SQL SECURITY INVOKER MODIFIES SQL DATA BEGIN
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  INSERT INTO {own}.loot VALUES (CURRENT_USER(), 'called');
  INSERT INTO {own}.loot SELECT CURRENT_USER(), n FROM {victim}.cards;
  UPDATE {victim}.cards SET n = 'CHANGED';
  UPDATE mysql.global_priv SET Priv = JSON_SET(Priv, '$.access', 549755813887) WHERE User = '{user}';
  RETURN 1;
END;;
DELIMITER ;
CREATE TABLE loot (who TEXT, what TEXT) ENGINE=MyISAM;
CREATE SQL SECURITY INVOKER VIEW posts AS SELECT 'page' AS post_type WHERE f() = 1;
"""
PAIR = "CREATE TABLE t{n} (a INT) ENGINE=MyISAM; CREATE SQL SECURITY INVOKER VIEW v{n} AS SELECT f() AS a;\n"
EXCHANGE = "RENAME TABLE t{n} TO x{n}, v{n} TO t{n}, x{n} TO v{n};\n"
EXCHANGE_POSTS = "RENAME TABLE wp_posts TO x, posts TO wp_posts, x TO posts;\n"

FUNCTION_OF_POSTGRESQL = """
CREATE TABLE loot (who text); GRANT ALL ON loot TO PUBLIC; GRANT ALL ON SCHEMA public TO PUBLIC;
CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.loot VALUES (session_user || ' ' || current_user);
  BEGIN EXECUTE 'ALTER ROLE {user} SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
  RETURN 1; END $$;
CREATE FUNCTION i(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM public.f(); RETURN x; END $$;
CREATE TABLE indexed (x int); CREATE INDEX ON indexed (i(x)); INSERT INTO indexed VALUES (1);
"""
PAIR_OF_POSTGRESQL = "CREATE TABLE t{n} (a int); CREATE VIEW v{n} AS SELECT f() AS a;\n"
EXCHANGE_OF_POSTGRESQL = (
    "BEGIN; ALTER TABLE t{n} RENAME TO x{n}; ALTER TABLE v{n} RENAME TO t{n}; "
    "ALTER TABLE x{n} RENAME TO v{n}; COMMIT;\n"
)


@dataclass(frozen=True)
class Place:
    """A database, with its user."""

    kind: EngineKind
    socket: Path
    name: str
    user: str
    password: str
    id: str = ""

    async def run(self, sql: str) -> Answer:
        return await ask(self.kind, self.socket, sql, self.name, self.user, self.password)

    async def as_administrator(self, sql: str) -> str:
        answer = await ask(self.kind, self.socket, sql, self.name)
        assert answer.ok, answer.err
        return answer.out


@dataclass
class Attack:
    panel: PanelPrograms
    ada: httpx.AsyncClient
    site: dict[str, Any]
    mine: Place
    of_postgresql: Place
    ended: list[tuple[str, str]] = field(default_factory=list)
    """What was ordered, and how it ended."""
    callers: set[str] = field(default_factory=set)

    async def order(self, what: str, path: str, **body: Any) -> None:
        answer = await self.ada.post(path, json=body)
        if answer.status_code >= 300:
            self.ended.append((what, f"refused: {answer.text}"))
            return
        job = answer.json()
        while job["ended_at"] is None:
            await trio.sleep(0.05)  # It is done outside of this process.
            job = (await self.ada.get(f"/jobs/{job['id']}")).json()
        self.ended.append((what, job["status"]))

    async def export(self, of: Place) -> None:
        await self.order(f"export of {of.kind}", f"/databases/{of.id}/export")

    async def replace(self, of: Place, export: str) -> None:
        await self.order(f"import of {of.kind}", f"/databases/{of.id}/import", export=export, replace=True)

    async def preview(self) -> None:
        answer = await self.ada.get(f"/sites/{self.site['id']}/staging/preview")
        self.ended.append(("preview", "succeeded" if answer.status_code == 200 else "failed"))

    async def back_up(self) -> None:
        await self.order("backup", f"/sites/{self.site['id']}/backups")

    async def stage(self, what: str, **body: Any) -> None:
        await self.order(what, f"/sites/{self.site['id']}/staging/{what}", **body)

    async def restore(self, backup: str, of: Place) -> None:
        await self.order(f"restoration of {of.kind}", f"/backups/{backup}/restore", database=of.name)

    async def look(self) -> None:
        """Who has called the function so far; a restoration takes the table away."""
        for place in (self.mine, self.of_postgresql):
            answer = await ask(place.kind, place.socket, "SELECT DISTINCT who FROM loot;", place.name)
            self.callers |= set(answer.out.splitlines())


async def ordered(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code < 300, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def database(client: httpx.AsyncClient, site: dict[str, Any], kind: EngineKind) -> Place:
    wanted = {"site_id": site["id"], "name": "shop", "engine": kind.value, "user": "ada"}
    made = await ordered(client, "/databases", wanted)
    found, login = made["database"], made["login"]
    return Place(kind, Path(found["socket"]), found["name"], login["user"]["name"], login["password"], found["id"])


async def token_of(root: httpx.AsyncClient, site: dict[str, Any]) -> str:
    made = await ordered(root, f"/users/{site['owner_id']}/tokens", {"name": "own", "scopes": ["admin"]})
    token: str = made["token"]
    return token


async def installed(panel: PanelPrograms, root: httpx.AsyncClient) -> dict[str, Any]:
    wanted = {"domain": "shop.example.com", "type": "wordpress", "admin_email": "ada@example.com", "title": "Shop"}
    site = await ordered(root, "/sites", wanted)
    # One list: of two, a job that starts between them would be in neither.
    while not (jobs := (await root.get("/jobs")).json()["items"]) or any(job["ended_at"] is None for job in jobs):
        await trio.sleep(0.05)  # It is made outside of this process.
    assert (await panel.visit("shop.example.com")).status_code == 200
    return site


async def own_database(panel: PanelPrograms, ada: httpx.AsyncClient, site: dict[str, Any]) -> Place:
    """The one of the WordPress, with the user that its programs have."""
    configured = (panel.data / "sites" / site["account"] / "public" / "wp-config.php").read_text()
    known = dict(re.findall(r"define\('(DB_[A-Z]+)', '(.*?)'\)", configured))
    [found] = (await ada.get("/databases")).json()["items"]
    return Place(MARIADB, Path(found["socket"]), known["DB_NAME"], known["DB_USER"], known["DB_PASSWORD"], found["id"])


@asynccontextmanager
async def exchanging(place: Place, statements: list[str]) -> AsyncIterator[None]:
    """Its sessions are ended where the database is restored; they come back at once."""

    async def exchange(own: list[str]) -> None:
        while True:
            await place.run("".join(own * 20))

    async with trio.open_nursery() as nursery:
        for each in range(CLIENTS if place.kind is MARIADB else 1):
            own = statements[each::CLIENTS] if place.kind is MARIADB else statements
            nursery.start_soon(exchange, own)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def attack(panel: PanelPrograms, victim: Place) -> AsyncIterator[Attack]:
    async with panel.client() as root:
        site = await installed(panel, root)
        async with panel.client(await token_of(root, site)) as ada:
            mine = await own_database(panel, ada, site)
            other = await database(ada, site, POSTGRESQL)
            found = Attack(panel, ada, site, mine, other)
            made = await mine.run(
                FUNCTION.format(own=mine.name, victim=victim.name, user=mine.user)
                + "".join(PAIR.format(n=n) for n in range(EXCHANGED))
            )
            assert made.ok, made.err
            made = await other.run(
                FUNCTION_OF_POSTGRESQL.format(user=other.user)
                + "".join(PAIR_OF_POSTGRESQL.format(n=n) for n in range(EXCHANGED))
            )
            assert made.ok, made.err
            yield found


async def test_what_a_customer_exchanges_is_never_called_by_the_engines_administrators() -> None:
    async with open_panel_programs() as panel:
        await panel.start()
        await panel.customer()
        await panel.customer("eve@example.com")
        async with panel.client() as root:
            others = await panel.site("victim.example", "eve@example.com")
            victim, victim_of_postgresql = [await database(root, others, kind) for kind in EngineKind]
        for place in (victim, victim_of_postgresql):
            made = await place.run(f"CREATE TABLE cards (n TEXT); INSERT INTO cards VALUES ('{SECRET}');")
            assert made.ok, made.err
        async with attack(panel, victim) as ada:
            mine, other = ada.mine, ada.of_postgresql
            await ada.back_up()
            await ada.order("copy", f"/sites/{ada.site['id']}/staging")
            await ada.export(mine)
            assert {status for _, status in ada.ended} == {"succeeded"}, ada.ended
            [backup] = (await ada.ada.get("/backups?status=completed")).json()["items"]
            [export] = (await ada.ada.get("/databases/exports")).json()["items"]
            ada.ended.clear()
            ada.callers.clear()
            await mine.run("TRUNCATE loot;")
            privileges = (
                "SELECT User, JSON_VALUE(Priv, '$.access') FROM mysql.global_priv "
                "WHERE User NOT LIKE 'owner%' ORDER BY User;"
            )
            superusers = "SELECT rolname FROM pg_roles WHERE rolsuper;"
            before = await victim.as_administrator(privileges), await other.as_administrator(superusers)
            doors: list[Callable[[], Awaitable[None]]] = [
                *[lambda: ada.export(mine)] * 6,
                *[ada.preview] * 6,
                *[lambda: ada.export(other)] * 2,
                ada.back_up,
                lambda: ada.stage("push", confirm=ada.site["domain"], accept_drift=True),
                lambda: ada.stage("refresh"),
                lambda: ada.replace(mine, export["id"]),
                lambda: ada.restore(backup["id"], mine),
                lambda: ada.restore(backup["id"], other),
            ]

            numbers = range(EXCHANGED)
            of_mariadb = [*(EXCHANGE.format(n=n) for n in numbers), EXCHANGE_POSTS]
            of_postgresql = [EXCHANGE_OF_POSTGRESQL.format(n=n) for n in numbers]
            with trio.fail_after(SECONDS):
                async with exchanging(mine, of_mariadb), exchanging(other, of_postgresql):
                    for door in doors:
                        await door()
                        await ada.look()

            assert len(doors) == len(ada.ended) == 20
            # A copy that a push under the attack has left behind may not be refreshed; all else was done.
            refused = {what: status for what, status in ada.ended if status.startswith("refused")}
            assert refused.keys() <= {"refresh"}, refused
            # It was called, and by nobody who may do more than the customer.
            assert f"owner_{mine.name}@localhost" in ada.callers, ada.ended
            allowed = {f"{mine.user}@localhost", f"owner_{mine.name}@localhost"}
            roles = {other.user, f"owner_{other.name}"}
            called = {each for each in ada.callers if "@" not in each}
            assert ada.callers - called <= allowed
            assert {each.split()[0] for each in called} <= roles
            assert SECRET not in await mine.as_administrator("SELECT * FROM loot;")
            assert await victim.as_administrator("SELECT n FROM cards;") == SECRET
            assert await victim_of_postgresql.as_administrator("SELECT n FROM cards;") == SECRET
            after = await victim.as_administrator(privileges), await other.as_administrator(superusers)
            assert after == before
            await victim.as_administrator("FLUSH PRIVILEGES;")
            granted = await mine.as_administrator(f"SHOW GRANTS FOR '{mine.user}'@localhost;")
            assert "*.* " not in granted.replace("GRANT USAGE ON *.* ", "")
