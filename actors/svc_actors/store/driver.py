"""asyncpg on Trio: asyncpg's own protocol and `Connection`, over a socket that the awaiting task reads and writes.

Invariants:
- asyncpg's timeouts and its own cancellation are never used (they need asyncio): callers use Trio's cancel scopes.
- A reply can only reach the query that it answers: see `svc_actors.store.transport`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, ValuesView
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import asyncpg
import trio
from asyncpg import connect_utils
from asyncpg.connection import Connection as _AsyncpgConnection
from asyncpg.protocol.protocol import NO_TIMEOUT

from svc_actors.store.loop import Loop
from svc_actors.store.transport import Link, Traffic

_CANCEL_TIMEOUT = 2.0

NotificationSink = Callable[[str, str], None]

if TYPE_CHECKING:

    class Record(Protocol):
        """A row: its columns by name and by place."""

        def __getitem__(self, key: str | int) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __contains__(self, name: object) -> bool: ...
        def get(self, name: str, default: Any = None) -> Any: ...
        def keys(self) -> KeysView[str]: ...
        def values(self) -> ValuesView[Any]: ...
        def items(self) -> ItemsView[str, Any]: ...

else:
    Record = asyncpg.Record


_OID_OF_FIRST_OTHER_TYPE: Final = 10_000
"""PostgreSQL's `FirstGenbkiObjectId`. Types with a lower oid are defined by PostgreSQL itself, and have the same oid in
every database."""
_system_types: Final[dict[int, Record]] = {}
"""Cache of asyncpg's lookups of these types, by oid; component types come first. Without it asyncpg looks up every
kind of array again on each connection, with a statement that takes longer than ten of the statements that need it."""

_NO_STATEMENT: Final = SimpleNamespace(name="none")
"""For asyncpg, which prepares an unnamed statement again when a type lookup has replaced it."""


class Connection(_AsyncpgConnection):  # type: ignore[misc]  # asyncpg ships no types
    """One session with the server. Used by one task at a time; its owner closes it with `terminate`."""

    __slots__ = ("deadline", "idle_since", "link", "notification_sink")

    link: Link
    deadline: float
    """When the pool gives up the running statement, by Trio's clock."""
    idle_since: float
    notification_sink: NotificationSink | None

    def __init__(self, protocol: Any, transport: Link, loop: Any, addr: Any, config: Any, params: Any) -> None:
        super().__init__(protocol, transport, loop, addr, config, params)
        self.link = transport
        self.deadline = math.inf
        self.idle_since = 0.0
        self.notification_sink = None

    def _process_notification(self, pid: int, channel: str, payload: str) -> None:
        if self.notification_sink is not None:
            self.notification_sink(channel, payload)

    async def rows(self, sql: str, args: tuple[object, ...], limit: int) -> list[Record]:
        """The rows of a statement, up to `limit` of them (0: all); a prepared statement is sent straight away."""
        rows, _ = await self._run(sql, args, limit)
        return rows

    async def command(self, sql: str, args: tuple[object, ...]) -> str:
        """Run a statement for its effect, as `rows` does; returns the server's command tag. Without arguments `sql` may
        hold several statements."""
        if not args:
            tag: str = await self.execute(sql)
            return tag
        _, status = await self._run(sql, args, 0)
        return status.decode()

    async def command_and_commit(self, sql: str, args: tuple[object, ...]) -> str:
        """Run the last statement of a transaction and COMMIT, in one round trip if the statement is already prepared.
        Returns the tag of COMMIT. After an error nothing was committed, and the caller rolls back a transaction that is
        still open."""
        self._check_open()
        statement = self._prepared(sql)
        if statement is None:
            await self.command(sql, args)
            tag: str = await self.execute("COMMIT")
            return tag
        with self.link.send_behind("COMMIT"):
            _, status = await self._run_prepared(statement, args, 0)
        return status.decode()

    async def _run(self, sql: str, args: tuple[object, ...], limit: int) -> tuple[list[Record], bytes]:
        """The rows and the command tag. asyncpg's own `execute` and `fetch` do lookups that a prepared statement does
        not need, which cost a third of a short statement's time."""
        self._check_open()
        statement = self._prepared(sql)
        if statement is not None:
            try:
                return await self._run_prepared(statement, args, limit)
            except asyncpg.InvalidCachedStatementError:
                # The statement is prepared again, once. In a failed transaction this is not possible.
                if self.is_in_transaction():
                    raise
        rows, status, _ = await self._execute(sql, args, limit, None, return_status=True)
        return rows, status

    def _prepared(self, sql: str) -> Any:
        return self._stmt_cache.get((sql, asyncpg.Record, False))

    async def _run_prepared(self, statement: Any, args: tuple[object, ...], limit: int) -> tuple[list[Record], bytes]:
        try:
            rows, status, _ = await self._protocol.bind_execute(statement, args, "", limit, True, NO_TIMEOUT)
        except asyncpg.OutdatedSchemaCacheError:
            await self.reload_schema_state()
            raise
        except asyncpg.InvalidCachedStatementError:
            # The schema has changed since the statement was prepared.
            self._drop_local_statement_cache()
            raise
        return rows, status

    async def _introspect_types(self, typeoids: Collection[int], timeout: float) -> tuple[Collection[Record], Any]:
        if _system_types.keys() >= set(typeoids):
            return _system_types.values(), _NO_STATEMENT
        rows, statement = await super()._introspect_types(typeoids, timeout)
        _system_types.update((row["oid"], row) for row in rows if row["oid"] < _OID_OF_FIRST_OTHER_TYPE)
        return rows, statement

    @property
    def interrupted(self) -> bool:
        """Whether a task gave up while it awaited a reply: the server may still be working on the query."""
        return self.link.interrupted

    def reusable(self) -> bool:
        """Whether another task may have this connection: open, and outside a transaction."""
        return not self.is_closed() and not self.is_in_transaction()

    def is_quiet(self) -> bool:
        """Whether the server has sent nothing since the last reply: an unsolicited message mostly means a shutdown."""
        return self.link.is_quiet()

    async def pump_notifications(self) -> None:
        """Wait for unsolicited messages of the server and deliver its notifications to `notification_sink`.

        Returns when something has arrived; raises `ConnectionResetError` once the connection is gone.
        """
        await self.link.wait_readable()
        self.link.receive()
        if self.is_closed():
            raise ConnectionResetError("the database closed the connection")


class Connector:
    """Opens connections to the server of a libpq URL, which is parsed once."""

    def __init__(self, url: str, *, application_name: str) -> None:
        self._traffic = Traffic()
        self._addresses, self._params, self._config = connect_utils._parse_connect_arguments(
            dsn=url,
            host=None,
            port=None,
            user=None,
            password=None,
            passfile=None,
            database=None,
            command_timeout=None,
            statement_cache_size=512,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=32 * 1024,
            ssl=None,
            direct_tls=None,
            server_settings={"application_name": application_name, "TimeZone": "UTC", "jit": "off"},
            target_session_attrs=None,
            krbsrvname=None,
            gsslib=None,
            service=None,
            servicefile=None,
        )

    async def connect(self) -> Connection:
        """A new connection to the first host that takes it.

        Raises `OSError` or `asyncpg.PostgresError`; the caller sets the deadline.
        """
        failure: BaseException | None = None
        for address in self._addresses:
            try:
                connection = await self._connect_to(address)
            except OSError as error:
                failure = error
            except connect_utils._NextHostSignal as signal:
                failure = signal.__cause__
            else:
                if connection is not None:
                    return connection
        raise failure or ConnectionError("no database host of the URL accepts sessions of the kind asked for")

    async def _connect_to(self, address: Any) -> Connection | None:
        connection = cast(
            Connection,
            await connect_utils._connect_addr(
                addr=address,
                loop=Loop(self._traffic),
                params=self._params,
                config=self._config,
                connection_class=Connection,
                record_class=asyncpg.Record,
            ),
        )
        try:
            if not await connect_utils._can_use_connection(connection, self._params.target_session_attrs):
                connection.terminate()
                return None
            for json_type in ("json", "jsonb"):
                await connection.set_type_codec(
                    json_type, schema="pg_catalog", encoder=encode_json, decoder=json.loads, format="text"
                )
        except BaseException:
            connection.terminate()
            raise
        return connection

    def cancellation_of(self, connection: Connection) -> Callable[[], Any]:
        """An async function that asks the server to stop what `connection` was doing; take it before terminating.

        The request uses its own connection, names the backend by pid and secret, and is best effort: an unreachable
        server has nothing to stop. It is completed even while the pool is being closed.
        """
        address, pid, secret = connection._addr, connection.link.backend[0], connection.link.backend[1]

        async def send() -> None:
            with trio.move_on_after(_CANCEL_TIMEOUT, shield=True):
                try:
                    await connect_utils._cancel(
                        loop=Loop(self._traffic),
                        addr=address,
                        params=self._params,
                        backend_pid=pid,
                        backend_secret=secret,
                    )
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    return

        return send


def encode_json(value: object) -> str:
    """The text sent for json and jsonb columns: compact, and strict about values that JSON cannot express."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
