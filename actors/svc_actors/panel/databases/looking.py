"""Checks a dump before a database is emptied in order to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from svc_actors.panel.jobs import JobRun, ProgramFailed
from svc_actors.panel.sites.records import SiteRow
from svc_common.errors import invalid, unavailable
from svc_webhost.confined.sql_look import LOOKED
from svc_webhost.databases import DatabaseError, DatabaseServer, SiteFile

_REFUSED: Final = 3
"""The exit status with which the program that reads dumps (`svc_webhost.confined.sql`) refuses a dump."""


async def check_dump(run: JobRun, server: DatabaseServer, source: Path | SiteFile, site: SiteRow) -> int:
    """Returns the size of the SQL in bytes, unpacked. Raises `invalid` if the engine could not load the dump: it is not
    SQL, of another engine, without a statement, or truncated. Raises `unavailable`."""
    size = 0

    async def read(lines: list[str]) -> None:
        nonlocal size
        for line in lines:
            if line.startswith(LOOKED):
                size = int(line.removeprefix(LOOKED))
            else:
                await run.log(line)

    async def program(
        command: tuple[str, ...],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: Path | None = None,
    ) -> None:
        await run.program(command, seconds=seconds, environment=environment, stdin=stdin, read=read)

    try:
        await server.look(source, site.account, program)
    except ProgramFailed as error:
        if error.status != _REFUSED:
            raise
        raise invalid(error.last, hint="Nothing was changed.") from error
    except DatabaseError as error:
        raise unavailable(str(error)) from error
    return size
