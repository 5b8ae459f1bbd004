"""Programs of the host, run with argument lists: one way in, one way their failures come out.

Invariants: no shell; standard input is empty unless given; every run has a deadline, after which the program is
killed; what it wrote on standard error reaches the reader of the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from svc_nodeagent.calls import host_call
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode

DEFAULT_TIMEOUT_SECONDS = 30.0
_SHOWN_ERROR_CHARACTERS = 400
log = structlog.get_logger(__name__)


class ProgramFailed(HostError):  # noqa: N818 - named for what it says
    """A program ended with another status than 0 (`status`; negative for a signal)."""

    def __init__(self, program: str, status: int, error: str) -> None:
        said = " ".join(error.split())[-_SHOWN_ERROR_CHARACTERS:] or f"status {status}, and no message"
        full = "No space left on device" in error
        super().__init__(
            FailureCode.CAPACITY if full else FailureCode.HOST,
            f"{program} failed: {said}",
            "Free disk space on the node, then try again." if full else None,
        )
        self.program = program
        self.status = status
        self.error = error


@dataclass(frozen=True)
class RunAs:
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def owner(self) -> tuple[int, int]:
        """As files name theirs."""
        return self.uid, self.gid


async def run_program(
    *arguments: str | Path,
    stdin: bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    run_as: RunAs | None = None,
) -> bytes:
    """Run to the end and give what it wrote. Raises `ProgramFailed`; `HostError(timed_out)` after `timeout` seconds."""
    status, output, error = await try_program(*arguments, stdin=stdin, timeout=timeout, run_as=run_as)
    if status != 0:
        raise ProgramFailed(str(arguments[0]), status, error)
    return output


async def try_program(
    *arguments: str | Path,
    stdin: bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    run_as: RunAs | None = None,
) -> tuple[int, bytes, str]:
    """As `run_program`, for a program whose status is an answer: (status, output, error)."""
    program = str(arguments[0])
    with host_call(f"run {Path(program).name}"):
        return await _try_program(program, [str(argument) for argument in arguments], stdin, timeout, run_as)


async def _try_program(
    program: str, command: Sequence[str], stdin: bytes | None, timeout: float, run_as: RunAs | None
) -> tuple[int, bytes, str]:
    with trio.move_on_after(timeout) as deadline:
        try:
            done = await trio.run_process(
                command,
                stdin=b"" if stdin is None else stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=ENVIRONMENT,
                user=None if run_as is None else run_as.uid,
                group=None if run_as is None else run_as.gid,
                extra_groups=None if run_as is None else run_as.groups,
            )
        except FileNotFoundError as error:
            raise HostError(
                FailureCode.HOST, f"{program} is not installed on this node.", "Install the node's packages anew."
            ) from error
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")
    assert deadline.cancelled_caught
    raise HostError(FailureCode.TIMED_OUT, f"{program} did not end within {timeout:g} s and was stopped.")


async def host_is_stopping() -> bool:
    """Whether the host is on its way down. Where systemd is not PID 1, or does not say, it is not."""
    if not await trio.Path("/run/systemd/system").exists():
        return False
    try:
        _, output, _ = await try_program("systemctl", "is-system-running", timeout=5.0)
    except HostError as error:
        log.warning("host.state_unknown", error=error.message)
        return False
    return output.strip() == b"stopping"


ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
