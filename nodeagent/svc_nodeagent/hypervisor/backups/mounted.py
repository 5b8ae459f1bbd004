"""A machine's store on the file system that is mounted on the node.

    backups/machines/<vm_id>/          mounted by an administrator of the node

Invariants: nothing is written unless `backups/machines` exists. The administrator creates it once on the file system
that is mounted at `backups`, so nothing is written while that file system is not mounted; and if it is unmounted during
a backup, nothing is written to the node's own disk instead. Only separate processes (`mounted_tree`) access the target,
and they are killed together with their caller. The agent itself opens nothing there, so file work for other machines
never waits for the target.

Rejected: a path that the controller names. An attacker who controls the controller could have a node write anywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import mounted_tree
from svc_nodeagent.hypervisor.backups.places import ResticAccess, is_full
from svc_nodeagent.hypervisor.backups.running import program
from svc_nodeagent.hypervisor.programs import ProgramFailed
from svc_nodeagent.protocol import FailureCode

LOOK_SECONDS: Final = 120.0
PATIENCE_SECONDS: Final = 300.0
"""A step that makes no progress on the target for this long is given up."""
REMOVE_SECONDS: Final = 3600.0
STATUSES: Final = (mounted_tree.MISSING, mounted_tree.STRANGE)
"""Exit statuses in `ProgramFailed` that mean that restic was not started."""
# The longest line of the helper: a line names one file, and a file's name has at most 255 bytes.
_MOST_LINE: Final = 64 * 1024
_HELPER: Final = "the helper for mounted targets"


@dataclass(frozen=True)
class TargetState:
    """`there`: the target has a repository of the machine."""

    there: bool
    locked: bool


@dataclass(frozen=True)
class DamagedFile:
    """A file that was set aside: where it was below the machine's folder, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class MountedTarget:
    """`folder` is `backups/machines`."""

    folder: Path
    vm_id: UUID

    @property
    def path(self) -> Path:
        return self.folder / str(self.vm_id)

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[ResticAccess]:
        yield ResticAccess(mounted_tree.REPOSITORY, through=self._command("run"))

    async def look(self, patience: float = LOOK_SECONDS) -> TargetState:
        """The state of the target. Raises `HostError` if there is no target (conflict), or if it does not answer for
        `patience` seconds."""
        [said] = await self._step("look", patience=patience)
        return TargetState(said["there"], said["locked"])

    async def set_aside_damaged(self, share: int, shares: int) -> list[DamagedFile]:
        """Move everything that is not a regular file, and those data files of this share whose content does not match
        their names, into `damaged`."""
        said = await self._step("verify", str(share), str(shares), patience=PATIENCE_SECONDS)
        return [DamagedFile(line["damaged"], line["why"]) for line in said]

    async def remove_unfinished(self) -> None:
        """Remove what restic was writing when it died; nothing writes here meanwhile."""
        await self._step("remove-unfinished", patience=PATIENCE_SECONDS)

    async def remove(self) -> None:
        await self._step("remove", patience=REMOVE_SECONDS)

    def missing(self) -> HostError:
        return HostError(
            FailureCode.CONFLICT,
            f"This node has no target for backups: there is no {self.folder}.",
            "Mount the target there, and make the folder `machines` in it once (docs/machine-backups.md).",
        )

    def failure(self, failed: ProgramFailed) -> HostError:
        # First the statuses of the helper itself. All other statuses are of restic, into which the helper has turned by
        # exec.
        if failed.status == mounted_tree.MISSING:
            return self.missing()
        if failed.status == mounted_tree.STRANGE:
            return HostError(
                FailureCode.HOST,
                f"The backup store {self.path} is damaged or was changed: {failed.error.strip()}; it was not changed.",
                "Check the target, and who else can write there.",
            )
        if not is_full(failed):
            return failed
        return HostError(
            FailureCode.CAPACITY,
            "The target for backups is full; the backups that are there were left as they are.",
            "The provider makes room at the target, or has fewer backups kept.",
        )

    async def _step(self, step: str, *arguments: str, patience: float) -> list[dict[str, Any]]:
        """Run a step; returns what it says. `patience`: how long it may say nothing, in seconds."""
        # A line "." only reports progress. Each line extends the deadline, so the deadline limits silence and not the
        # whole step, which may take hours.
        said, rest = [], b""
        try:
            with trio.CancelScope(deadline=trio.current_time() + patience) as scope:
                command = [*self._command(step), *arguments]
                async with program(command, stdout=subprocess.PIPE, quiet=True, name=_HELPER) as process:
                    assert process.stdout is not None
                    async for piece in process.stdout:
                        scope.deadline = trio.current_time() + patience
                        *lines, rest = (rest + piece).split(b"\n")
                        said += [json.loads(line) for line in lines if line != b"."]
                        if len(rest) > _MOST_LINE:
                            raise HostError(FailureCode.HOST, f"{_HELPER} returned more output than it may.")
        except ProgramFailed as failed:
            raise self.failure(failed) from failed
        if scope.cancelled_caught:
            raise HostError(
                FailureCode.TIMED_OUT,
                f"The target mounted at {self.folder} made no progress for {patience:g} s; it was not changed.",
                "Check whether its server responds.",
            )
        return said

    def _command(self, step: str) -> tuple[str, ...]:
        # -I and -S: Python loads no site packages and uses no environment variables, so the helper starts fast and
        # imports nothing else.
        helper = (sys.executable, "-I", "-S", mounted_tree.__file__)
        return (*helper, step, str(self.folder), str(self.vm_id))
