"""No visitor gets a file of an import that its .htaccess files deny, at no moment and wherever the import ends."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.imports.applying import ImportApplication
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.accepted import is_denied
from svc_webhost.confined.protocol import Delete, FileRequest, JudgeHtaccess, PlaceImported
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.nginx import Php, WordPress
from tests.panel.imports.test_applying import FORMATS
from tests.panel.imports.world import World, world_of
from tests.support import foreign_archives as foreign
from tests.support.denied_folders import BLOCKS, DRUPAL, WORDPRESS, secrets_in
from tests.support.foreign_archives import ADDON, MAIN, Tree
from tests.support.served import RecordedServing

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")

PRIVATE = {MAIN: secrets_in(WORDPRESS), ADDON: secrets_in({**DRUPAL, **BLOCKS})}
ASK = ConfinedFiles.ask


def trees(*, blocks: bool = False) -> dict[str, Tree]:
    made = foreign.model()
    made[MAIN].files |= WORDPRESS
    # A link from elsewhere into a denied folder blocks.
    del made[MAIN].links["latest"]
    made[ADDON].files |= {**DRUPAL, **(BLOCKS if blocks else {})}
    return made


class Visitor(trio.abc.Instrument):
    """Looks after each step of any task what the web server would give to a visitor."""

    def __init__(self, world: World) -> None:
        self._web = world.panel.host.web
        self.leaks: set[str] = set()
        self.down: set[str] = set()
        """Sites that had a page, and lost it."""
        self._up: set[str] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        assert isinstance(self._web, RecordedServing)
        for site in self._web.sites.values():
            if not isinstance(site.serves, (Php, WordPress)):  # Suspended.
                continue
            root = Path(site.serves.root)
            for path in PRIVATE[site.domain]:
                if (root / path[1:]).exists() and not any(is_denied(pattern, path) for pattern in site.denied):
                    self.leaks.add(f"{site.domain}{path}")
            if any((root / page).exists() for page in ("index.php", "index.html")):
                self._up.add(site.domain)
            elif site.domain in self._up:
                self.down.add(site.domain)


@contextmanager
def visiting(world: World) -> Iterator[Visitor]:
    visitor = Visitor(world)
    trio.lowlevel.add_instrument(visitor)
    try:
        yield visitor
    finally:
        trio.lowlevel.remove_instrument(visitor)


@contextmanager
def cut(monkeypatch: pytest.MonkeyPatch, kind: type[FileRequest], *, after: bool) -> Iterator[None]:
    """The first such request of the files of a site fails, before it is carried out or after."""
    left = [1]

    async def ask(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        hit = bool(left) and isinstance(request, kind)
        if hit:
            left.clear()
        if hit and not after:
            raise unavailable("cut")
        try:
            return await ASK(self, folder, request, *given, **options)
        finally:
            if hit:
                raise unavailable("cut")  # Whatever it answered: there may be nothing to delete.

    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", ask)
        yield
    assert not left


def placed(world: World, site: dict[str, Any], path: str) -> bool:
    return (world.home(site) / "public" / path[1:]).exists()


def staged(world: World) -> list[Path]:
    """What imports have in sites until it is used."""
    return list(world.data.glob("sites/*/private/.svc-import"))


@pytest.mark.parametrize("format", FORMATS)
async def test_what_a_product_denies_is_never_served_and_applied_again_the_site_stays_up(
    world: World, format: str
) -> None:
    imported = await world.uploaded(FORMATS[format](trees()))
    with visiting(world) as visitor:
        job = await world.applied(imported)
        site = await world.site(MAIN)
        await world.panel.database.execute(
            "UPDATE imports SET status = 'failed', problem = 'cut', choices = choices - 'imported'"
        )
        again = await world.applied(imported)
    denied = {each["pattern"] for each in (await world.ada.get(f"/sites/{site['id']}/denied-paths")).json()}

    assert (job["status"], again["status"]) == ("succeeded", "succeeded"), (job["error"], again["error"])
    assert all(placed(world, site, path) for path in PRIVATE[MAIN])
    assert (site["status"], (await world.site(MAIN))["status"]) == ("active", "active")
    assert denied == {f"/wp-content/{name}" for name in ("updraft", "uploads/wc-logs", "uploads/woocommerce_uploads")}
    assert visitor.leaks == set()
    assert visitor.down == set()


async def test_a_site_that_cannot_be_translated_is_suspended_before_it_has_its_files(world: World) -> None:
    imported = await world.uploaded(foreign.hestia(trees(blocks=True)))
    with visiting(world) as visitor:
        job = await world.applied(imported)
    addon, main = await world.site(ADDON), await world.site(MAIN)

    assert job["status"] == "succeeded", job
    assert (addon["status"], main["status"]) == ("suspended", "active")
    assert all(placed(world, addon, path) for path in PRIVATE[ADDON])
    assert visitor.leaks == set()


async def test_an_import_that_ends_at_any_step_leaves_nothing_open_and_applied_again_the_site_is_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.by_hand(trees()))
    jobs = []
    left: list[Path] = []
    with visiting(world) as visitor:
        for kind in (JudgeHtaccess, PlaceImported, Delete):
            for after in (False, True):
                with cut(monkeypatch, kind, after=after):
                    jobs.append(await world.applied(imported))
                left += staged(world)
        last = await world.applied(imported)
    site = await world.site(MAIN)

    assert {job["status"] for job in jobs} == {"failed"}
    assert left == []
    assert last["status"] == "succeeded", last
    assert site["status"] == "active"
    assert all(placed(world, site, path) for path in PRIVATE[MAIN])
    assert staged(world) == []
    assert visitor.leaks == set()


def when_judged(world: World, monkeypatch: pytest.MonkeyPatch, does: Callable[[], Awaitable[object]]) -> None:
    """Whenever files of the site `ADDON` are judged, somebody else does this first."""

    async def ask(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, JudgeHtaccess):
            number = await world.panel.database.fetchval("SELECT number FROM sites WHERE domain = $1", ADDON)
            if folder.path.name == f"s{number}":
                await does()
        return await ASK(self, folder, request, *given, **options)

    monkeypatch.setattr(ConfinedFiles, "ask", ask)


async def test_a_suspension_that_ends_with_the_account_s_keeps_nothing_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.hestia(trees(blocks=True)))
    ada = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
    account = f"/accounts/{ada}"

    with visiting(world) as visitor:
        with monkeypatch.context() as patched:
            when_judged(world, patched, lambda: world.root.post(f"{account}/suspend", {"reason": "late"}))
            ordered = (await world.ada.post(f"/imports/{imported['id']}/apply", {})).json()
            job = await world.job(ordered["id"], world.root)
        await world.root.post(f"{account}/unsuspend", {})
        addon = await world.site(ADDON)
        before = [path for path in PRIVATE[ADDON] if placed(world, addon, path)]
        again = await world.applied(imported)
        after = await world.site(ADDON)

    assert (job["status"], job["error"]["code"]) == ("failed", "conflict"), job
    assert "suspended with its account" in job["error"]["message"]
    assert (addon["status"], before) == ("active", [])
    assert again["status"] == "succeeded", again
    assert (after["status"], after["suspended_by"]) == ("suspended", "owner")
    assert all(placed(world, after, path) for path in PRIVATE[ADDON])
    assert visitor.leaks == set()


async def test_a_site_that_its_owner_opens_while_it_is_unpacked_is_closed_before_it_has_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.hestia(trees(blocks=True)))
    only = {"without": [f"site:{MAIN}"]}

    with visiting(world) as visitor:
        with cut(monkeypatch, PlaceImported, after=False):
            await world.applied(imported, **only)
        before = await world.site(ADDON)
        opened = f"/sites/{before['id']}/suspend"
        with monkeypatch.context() as patched:
            when_judged(world, patched, lambda: world.ada.post(opened, {"suspended": False}))
            job = await world.applied(imported, **only)
        after = await world.site(ADDON)

    assert (before["status"], after["status"]) == ("suspended", "suspended")
    assert job["status"] == "succeeded", job
    assert all(placed(world, after, path) for path in PRIVATE[ADDON])
    assert visitor.leaks == set()


async def test_a_site_that_its_owner_opens_after_it_was_judged_does_not_get_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.hestia(trees(blocks=True)))
    judge = ImportApplication._judge

    async def judged(self: ImportApplication, *given: Any) -> bool:
        closed = await judge(self, *given)
        if closed:
            await world.ada.post(f"/sites/{(await world.site(ADDON))['id']}/suspend", {"suspended": False})
        return closed

    with visiting(world) as visitor:
        with monkeypatch.context() as patched:
            patched.setattr(ImportApplication, "_judge", judged)
            job = await world.applied(imported)
        addon = await world.site(ADDON)
        before = [path for path in PRIVATE[ADDON] if placed(world, addon, path)]

    assert (job["status"], job["error"]["code"]) == ("failed", "conflict"), job
    assert "no longer suspended" in job["error"]["message"]
    assert (addon["status"], before) == ("active", [])
    assert visitor.leaks == set()


async def test_an_import_that_is_cancelled_leaves_nothing_staged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = await world.uploaded(foreign.by_hand(trees()))
    judged = trio.Event()

    async def hang(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, PlaceImported):
            judged.set()
            await trio.sleep_forever()
        return await ASK(self, folder, request, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", hang)
        ordered = (await world.ada.post(f"/imports/{imported['id']}/apply", {})).json()
        with trio.fail_after(60):
            await judged.wait()
        before = staged(world)
        await world.ada.post(f"/jobs/{ordered['id']}/cancel")
        job = await world.job(ordered["id"])

    assert len(before) == 1
    assert job["status"] == "cancelled", job
    assert staged(world) == []


@pytest.mark.parametrize("gone_by", ["owner", "sweep"])
async def test_what_a_failed_import_could_not_remove_goes_with_its_record_and_never_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch, gone_by: str
) -> None:
    imported = await world.uploaded(foreign.by_hand(trees()))
    path = f"/imports/{imported['id']}"

    async def ask(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, PlaceImported) or (isinstance(request, Delete) and staged(world)):
            raise unavailable("cut")
        return await ASK(self, folder, request, *given, **options)

    async def go() -> None:
        if gone_by == "owner":
            await world.ada.delete(path, {})
        else:
            await world.panel.step("removal of old imports")

    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", ask)
        job = await world.applied(imported)
        await world.panel.database.execute("UPDATE imports SET touched_at = now() - interval '8 days'")
        await go()
        kept = await world.ada.get(path)
        left = staged(world)
    await go()
    gone = await world.ada.get(path)

    assert job["status"] == "failed"
    assert (kept.status_code, len(left)) == (200, 1)
    assert gone.status_code == 404
    assert staged(world) == []


async def test_an_archive_that_cannot_be_unpacked_to_its_end_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = foreign.Packer()
    packed.tree(f"{MAIN}/htdocs", trees()[MAIN])
    packed.link(f"{MAIN}/htdocs/second", f"{MAIN}/htdocs/missing", tarfile.LNKTYPE)
    imported = await world.uploaded(packed.gzipped())

    async def ask(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, Delete) and staged(world):
            raise unavailable("cut")
        return await ASK(self, folder, request, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", ask)
        job = await world.applied(imported)

    assert job["status"] == "failed"
    assert "links to something that is not in it" in job["error"]["message"]
    assert [list(folder.iterdir()) for folder in staged(world)] == [[]]


async def test_nothing_of_an_archive_is_placed_where_files_wait_to_be_judged(world: World) -> None:
    home = {f"private/{name}": b"planted" for name in ("notes.txt", ".svc-import/files/public/planted.txt")}
    imported = await world.uploaded(foreign.hestia(trees(), home=home))
    job = await world.applied(imported)
    site = await world.site(MAIN)

    assert job["status"] == "succeeded", job
    assert (world.home(site) / "private/notes.txt").read_bytes() == b"planted"
    assert not placed(world, site, "/planted.txt")
    assert staged(world) == []


async def test_files_wait_for_a_web_server_that_has_not_taken_what_they_deny(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = world.panel.host.web
    assert isinstance(web, RecordedServing)
    imported = await world.uploaded(foreign.by_hand(trees()))

    async def ask(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, JudgeHtaccess):
            web.down = "nginx is gone"
        return await ASK(self, folder, request, *given, **options)

    with visiting(world) as visitor:
        with monkeypatch.context() as patched:
            patched.setattr(ConfinedFiles, "ask", ask)
            # The first attempt records what the files deny; the second one finds it recorded, and not served.
            jobs = [await world.applied(imported) for _ in range(2)]
        site = await world.site(MAIN)
        before = [path for path in PRIVATE[MAIN] if placed(world, site, path)]
        web.down = None
        await world.panel.step("sites to resume")
        last = await world.applied(imported)

    assert [job["status"] for job in jobs] == ["failed", "failed"]
    assert all("the web server has not applied" in job["error"]["message"] for job in jobs), jobs
    assert before == []
    assert last["status"] == "succeeded", last
    assert all(placed(world, site, path) for path in PRIVATE[MAIN])
    assert visitor.leaks == set()


async def test_a_core_that_ends_before_the_files_are_in_place_leaves_the_site_as_it_was(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    judged = trio.Event()

    async def hang(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, PlaceImported):
            judged.set()
            await trio.sleep_forever()
        return await ASK(self, folder, request, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", hang)
        async with world_of(panel_database, tmp_path) as world:
            imported = await world.uploaded(foreign.by_hand(trees()))
            await world.ada.post(f"/imports/{imported['id']}/apply", {})
            with trio.fail_after(60):
                await judged.wait()
            host = world.panel.host
    async with world_of(panel_database, tmp_path, host) as world:
        site = await world.site(MAIN)
        before = [path for path in PRIVATE[MAIN] if placed(world, site, path)]
        with visiting(world) as visitor:
            job = await world.applied(imported)

        assert before == []
        assert job["status"] == "succeeded", job
        assert all(placed(world, site, path) for path in PRIVATE[MAIN])
        assert visitor.leaks == set()
