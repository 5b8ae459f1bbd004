"""Jobs that install, enable and disable PHP extensions: one job at a time, and each extension is tested before sites
get it.

An extension that PHP cannot load is disabled again before any site's PHP starts with it. An extension that loads is
given to every site of the PHP version: each site gets a new PHP master next to the serving one, as with any other
change of its PHP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, Protocol

from svc_actors.panel.jobs import Job, JobClass, JobRun, NewJob, enqueue
from svc_actors.panel.sites.php import PHP_TYPES
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError, conflict
from svc_webhost.packages import RunProgram
from svc_webhost.php.extensions import ExtensionState, UnloadableError

KIND: Final = "php.extension"
STEPS: Final = ("change", "prove", "restart_sites")
IRREVOCABLE: Final = "Packages that are installed half-way would be left behind."


class ExtensionChange(StrEnum):
    INSTALL = "install"
    ENABLE = "enable"
    DISABLE = "disable"


class Extensions(Protocol):
    """Extensions of the server's PHP."""

    async def states(self, version: str) -> dict[str, ExtensionState]: ...

    async def loaded(self, version: str) -> frozenset[str]: ...

    async def install(self, version: str, name: str, run: RunProgram) -> None: ...

    async def enable(self, version: str, name: str, run: RunProgram) -> None: ...

    async def disable(self, version: str, name: str, run: RunProgram) -> None: ...

    async def prove(self, version: str, run: RunProgram) -> None: ...


async def enqueue_change(tx: Transaction, change: ExtensionChange, version: str, name: str) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"{change.value.capitalize()} {name} of PHP {version}",
            job_class=JobClass.SYSTEM,
            steps=STEPS,
            parameters={"change": change.value, "version": version, "name": name},
        ),
    )


class ExtensionWork:
    """The work of the jobs. `resume` has sites served as their records want."""

    def __init__(self, database: Database, extensions: Extensions, resume: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._extensions = extensions
        self._resume = resume

    async def change(self, run: JobRun) -> None:
        version, name = run.parameters["version"], run.parameters["name"]
        match ExtensionChange(run.parameters["change"]):
            case ExtensionChange.INSTALL:
                await self._extensions.install(version, name, run.program)
            case ExtensionChange.ENABLE:
                await self._extensions.enable(version, name, run.program)
            case ExtensionChange.DISABLE:
                await self._extensions.disable(version, name, run.program)

    async def prove(self, run: JobRun) -> None:
        version, name = run.parameters["version"], run.parameters["name"]
        try:
            await self._extensions.prove(version, run.program)
        except (UnloadableError, ServiceError) as error:
            if run.parameters["change"] != ExtensionChange.DISABLE:
                await self._extensions.disable(version, name, run.program)
            raise conflict(
                f"PHP {version} does not load everything that is enabled: {error}",
                hint=f"{name} is disabled, and the PHP of no site was restarted.",
            ) from error

    async def restart_sites(self, run: JobRun) -> None:
        """Requests a PHP restart; nginx switches once the new pool responds."""
        version = run.parameters["version"]
        rows = await self._database.fetch(
            """UPDATE sites SET wanted = wanted + 1,
                   php = jsonb_set(php, '{restarts}', to_jsonb(coalesce((php->>'restarts')::int, 0) + 1))
               WHERE type = ANY($1) AND php->>'version' = $2 AND status = $3 RETURNING domain""",
            [*PHP_TYPES],
            version,
            SiteStatus.ACTIVE,
        )
        await self._resume()
        await run.log(f"{len(rows):,} sites have PHP {version}; their PHP is restarted.")
