"""Two controllers on one database, by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli.failures import first_cause
from svc.service.controller.compose import open_controller
from svc_actors.store import AnotherServiceError, Database
from tests.support.configuration import local_config


async def test_the_second_is_refused_before_it_migrates_and_the_first_goes_on(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    environ = {"SVC_DATABASE_URL": database_url}
    async with open_controller(local_config(tmp_path / "first"), environ) as first:
        applied = await database.fetchval("SELECT count(*) FROM schema_migration")
        async with Database.open(database_url.replace("//svc@", "//svc_owner@")) as owner:
            # As if the second were of a later release: its first step would be to apply what is missing here.
            await owner.execute(
                "DELETE FROM schema_migration WHERE number = (SELECT max(number) FROM schema_migration)"
            )
            second = local_config(tmp_path / "second")

            with pytest.raises((AnotherServiceError, ExceptionGroup)) as caught:
                async with open_controller(second, environ):
                    pytest.fail("two controllers on one database")

        cause = first_cause(caught.value)
        assert isinstance(cause, AnotherServiceError)
        assert "Another controller runs on this database" in str(cause)
        assert await database.fetchval("SELECT count(*) FROM schema_migration") == applied - 1
        assert await first.services.database.fetchval("SELECT 1") == 1
