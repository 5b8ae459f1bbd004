"""PostgreSQL for the tests: one server a test process, and a migrated database with nothing else in it a test.

`database` is the last test's, cleaned (tests/support/warm_database.py); who asks for `database_url` gets a fresh copy.
A test that asks for neither starts no server. Tests that use them run on the real clock: Trio's autojump clock takes a
task that waits for a socket for an idle one and would let every timeout pass. Where a test needs both,
`MockClock(rate=1)` without autojump, moved by hand with `jump`, is safe.
"""

from __future__ import annotations

import gc
import itertools
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import pytest
import trio

from svc_actors.store import Database, embedded
from svc_actors.store.embedded import OWNER_ROLE, SERVICE_ROLE
from tests.support import own_host
from tests.support.drawn import draw_items
from tests.support.figures import figures_of
from tests.support.kept_cluster import SUPERUSER, lay_out_cluster
from tests.support.logs import keep_no_loggers, plain_logs
from tests.support.stuck import cut_when_stuck, leave_the_run
from tests.support.turns import Turns, turn_of
from tests.support.warm_database import WarmDatabase

_MEMORY = "/dev/shm"
_DROPPING_SECONDS = 10
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "autovacuum": "off",
}


# Hundreds of Python processes are started; where none may keep what it compiled, most of their time goes into compiling
# the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# An example may take as long as a machine at work lets it take. What a run in CI is set to otherwise is kept.
hypothesis.settings.register_profile("unhurried", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("unhurried")


def pytest_configure() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and a program passes that on to those that it
    starts: the tests that interrupt one would wait for nothing."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_no_loggers()
    plain_logs()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    draw_items(config, items)


# Thousands of tests and all that they import stay until the run ends: the collector need not go through them again and
# again. Before the collection the conftest.py of the folders that were asked for import most of it.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_STDERR = os.dup(2)
"""Of the run itself: pytest has given the tests another one."""


_TURNS = Turns(_STDERR)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    _TURNS.take(turn_of(item))
    try:
        with nullcontext() if item.config.getoption("--full") else cut_when_stuck(item, _STDERR):
            return (yield)
    finally:
        _TURNS.until(turn_of(nextitem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    if trio.lowlevel.in_trio_run():
        leave_the_run()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Those on a host of their own come first, before there are threads."""
    hosted = [item for item in session.items if item.get_closest_marker(own_host.MARK)]
    may_run = not (session.testsfailed or session.config.option.collectonly or hasattr(session.config, "workerinput"))
    if not hosted or not may_run:
        return (yield)
    session.items = [item for item in session.items if item not in hosted]
    own_host.run_on_own_host(session, hosted)
    # pytest takes what has failed by now for errors of the collection, and would run nothing.
    failed, session.testsfailed = session.testsfailed, 0
    try:
        return (yield)
    finally:
        session.testsfailed += failed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [figure for report in terminalreporter.getreports("passed") for figure in figures_of(report.capstdout)]
    if told:
        terminalreporter.section("figures")
        for figure in told:
            terminalreporter.write_line(figure)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="faults at full length: hours instead of minutes")


class OpenPool(Protocol):
    def __call__(self, *, size: int) -> AbstractAsyncContextManager[Database]: ...


@dataclass(frozen=True)
class Cluster:
    """The PostgreSQL of this test process, and the databases that earlier tests are done with."""

    url: str
    administration: Database
    """On one connection as a superuser, who alone may end what autovacuum does in a database that is dropped."""
    token: trio.lowlevel.TrioToken
    """Of the Trio that the connection belongs to."""
    finished: list[str] = field(default_factory=list)
    warm: dict[str, WarmDatabase] = field(default_factory=dict)
    """Of each template, the database that the next test gets."""

    def url_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def fresh_database(self, template: str) -> str:
        """A copy of a template; its URL, for the role that the service runs as."""
        name = self._new_name()
        trio.from_thread.run(self._copy_for_one_test, template, name, trio_token=self.token)
        return _as(SERVICE_ROLE, self.url_of(name))

    @contextmanager
    def warm_database(self, template: str) -> Iterator[WarmDatabase]:
        """One that finds the database as the template is, for one test; cleaned afterwards."""
        warm = self.warm.pop(template, None) or trio.run(self._warm_copy, template)
        try:
            yield warm
        finally:
            if trio.run(warm.clean):
                self.warm[template] = warm
            else:
                self._give_up(warm)

    @asynccontextmanager
    async def own_database(self, template: str = "template1") -> AsyncIterator[str]:
        """One that the caller alone has, for as long as it wants; its URL, for its owner.

        Its name is new each time: files are dealt to workers in parts, so a module's fixture is made more than once in
        a process.
        """
        name = self._new_name()
        async with Database.open(_as(SUPERUSER, self.url), size=1) as administration:
            await administration.execute(
                f"CREATE DATABASE {name} OWNER {OWNER_ROLE} TEMPLATE {template} STRATEGY file_copy"
            )
            try:
                yield self.url_of(name)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _DROPPING_SECONDS):
                    await administration.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def give_up_warm_databases(self) -> None:
        """The next test of each template gets a copy that no test has used."""
        while self.warm:
            self._give_up(self.warm.popitem()[1])

    def _give_up(self, warm: WarmDatabase) -> None:
        trio.run(warm.close)
        self.finished.append(warm.name)

    async def _warm_copy(self, template: str) -> WarmDatabase:
        name = self._new_name()
        await trio.to_thread.run_sync(lambda: trio.from_thread.run(self._copy, template, name, trio_token=self.token))
        url = self.url_of(name)
        return await WarmDatabase.prepare(name, _as(SERVICE_ROLE, url), _as(SUPERUSER, url))

    def _new_name(self) -> str:
        return f"test_{os.getpid()}_{next(_numbers)}"

    async def _copy_for_one_test(self, template: str, name: str) -> None:
        # The last test's database waits for one more test: PostgreSQL would wait for its sessions to end.
        while len(self.finished) > 1:
            await self.administration.execute(f"DROP DATABASE {self.finished.pop(0)} WITH (FORCE)")
        await self._copy(template, name)
        self.finished.append(name)

    async def _copy(self, template: str, name: str) -> None:
        await self.administration.execute(
            f"CREATE DATABASE {name} OWNER {OWNER_ROLE} TEMPLATE {template} STRATEGY file_copy"
        )


def _as(role: str, url: str) -> str:
    return url.replace(f"//{OWNER_ROLE}@", f"//{role}@", 1)


@pytest.fixture(scope="session")
def database_cluster() -> Iterator[Cluster]:
    """Started by the first test that needs it, in a thread with its own Trio; stopped with the test process."""
    # Not pytest's own temporary folders: the server's user cannot reach them when the tests run as root.
    # And in memory where there is some, since a database is copied for every test.
    folder = Path(tempfile.mkdtemp(prefix="svc-tests-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    started: queue.Queue[Cluster | BaseException] = queue.Queue()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def serve() -> None:
        await lay_out_cluster(folder / "postgresql", _SETTINGS)
        async with embedded(folder / "postgresql", settings=_SETTINGS) as url:
            async with Database.open(_as(SUPERUSER, url), size=1) as administration:
                cluster = Cluster(url, administration, trio.lowlevel.current_trio_token())
                asked = trio.Event()
                stop.append((cluster.token, asked))
                started.put(cluster)
                await asked.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:  # noqa: BLE001  # handed to the thread that waits for it
            started.put(error)

    thread = threading.Thread(target=run, name="database-cluster")
    thread.start()
    try:
        outcome = started.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
        for warm in outcome.warm.values():
            trio.run(warm.close)
    finally:
        for token, asked in stop:
            token.run_sync_soon(asked.set)
        thread.join()
        shutil.rmtree(folder, ignore_errors=True)


_numbers = itertools.count(1)

_CONTROLLER_CONNECTIONS = 8
_PANEL_CONNECTIONS = 4
"""Of the pool of a test of the panel. The work in the background opens as many connections as there may be, and each
compiles every statement for itself."""


@pytest.fixture
def database_url(database_cluster: Cluster) -> str:
    """The URL of a fresh database with the controller's migrations applied, for the role that the service runs as."""
    return database_cluster.fresh_database("svc_template")


@pytest.fixture
def panel_database_url(database_cluster: Cluster) -> str:
    """As `database_url`, of the panel."""
    return database_cluster.fresh_database("svc_panel_template")


@pytest.fixture
def database_pool(request: pytest.FixtureRequest, database_cluster: Cluster) -> Iterator[OpenPool]:
    with _pool_of(request, database_cluster, "svc_template", "database_url") as pool:
        yield pool


@pytest.fixture
def panel_database_pool(request: pytest.FixtureRequest, database_cluster: Cluster) -> Iterator[OpenPool]:
    with _pool_of(request, database_cluster, "svc_panel_template", "panel_database_url") as pool:
        yield pool


@contextmanager
def _pool_of(request: pytest.FixtureRequest, cluster: Cluster, template: str, url: str) -> Iterator[OpenPool]:
    """On the database of the fixture `url`, where the test asks for that as well."""
    if url in request.fixturenames:
        yield partial(Database.open, request.getfixturevalue(url))
    else:
        with cluster.warm_database(template) as warm:
            yield warm.pool


@pytest.fixture
async def database(database_pool: OpenPool) -> AsyncIterator[Database]:
    """A pool on a database with every migration applied, and nothing of any other test in it. It is a fresh one for a
    test that asks for `database_url` as well: one whose processes connect, or which changes more than rows."""
    async with database_pool(size=_CONTROLLER_CONNECTIONS) as pool:
        yield pool


@pytest.fixture
async def panel_database(panel_database_pool: OpenPool) -> AsyncIterator[Database]:
    """As `database`, of the panel and `panel_database_url`."""
    async with panel_database_pool(size=_PANEL_CONNECTIONS) as pool:
        yield pool
