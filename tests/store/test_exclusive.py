"""One service on a database at a time: the second is refused, and the first stops when it lost its right to another."""

from __future__ import annotations

import pytest
import trio

from svc_actors.store import AnotherServiceError, Database, exclusive
from tests.support.postgres_server import PATIENCE, kill_server, own_server, until

LOCK_HOLDER = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1398162180"


async def test_a_second_service_is_refused_and_the_first_goes_on(database_url: str) -> None:
    async with Database.open(database_url) as first, Database.open(database_url) as second:
        async with exclusive(first, "controller"):
            with pytest.raises(AnotherServiceError, match=r"Another controller runs on this database.*changed nothing"):
                async with exclusive(second, "controller"):
                    pytest.fail("two controllers at once")
            async with exclusive(second, "panel"):
                assert await first.fetchval("SELECT 1") == 1
        async with exclusive(second, "controller"):
            assert await second.fetchval("SELECT 1") == 1


async def test_the_right_outlives_a_restart_of_the_server() -> None:
    async with own_server() as (url, folder), Database.open(url) as database, exclusive(database, "controller"):
        kill_server(folder)

        async def held_again() -> bool:
            try:
                return await database.fetchval(LOCK_HOLDER) is not None
            except Exception:  # noqa: BLE001  # away for a moment
                return False

        await until(held_again)


async def test_a_service_that_lost_its_right_to_another_stops(database_url: str) -> None:
    ended: list[BaseException] = []
    async with Database.open(database_url) as first, Database.open(database_url) as second:
        async with trio.open_nursery() as nursery:
            serving, over = trio.Event(), trio.Event()

            async def serve() -> None:
                try:
                    async with exclusive(first, "controller"):
                        serving.set()
                        await trio.sleep_forever()
                except* AnotherServiceError as group:
                    ended.extend(group.exceptions)
                over.set()

            nursery.start_soon(serve)
            await serving.wait()
            async with second.session() as other:
                await other.execute(f"SELECT pg_terminate_backend(pid) FROM ({LOCK_HOLDER}) AS holder")

                async def taken() -> bool:
                    return bool(await other.fetchval("SELECT pg_try_advisory_lock(1398162180, hashtext('controller'))"))

                await until(taken)
                with trio.fail_after(PATIENCE):
                    await over.wait()
    assert [type(error) for error in ended] == [AnotherServiceError]
