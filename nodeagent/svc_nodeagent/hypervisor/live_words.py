"""The messages that the two agents of a live migration exchange before libvirt does: file names, seed and secret.

Also here: opening the streams of a move, which both ends do in the same way, and the error for a stream that breaks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from pydantic import BaseModel, ConfigDict, Field

from svc_nodeagent.host import HostError, OpenStream
from svc_nodeagent.hypervisor.live_streams import close
from svc_nodeagent.protocol import FailureCode, LiveStreams

READY_SECONDS: Final = 120.0
"""How long the other host may take to make room."""
# A line has room for three paths of PATH_MAX (4096) bytes and a name. The other line contains a password hash of at
# most 1024 bytes.
_MOST_LINE: Final = 16 * 1024
MOST_SEED: Final = 16 * 1024 * 1024


class Place(BaseModel):
    """Where the target host has its files, and what it calls the domain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Path
    volumes: Path
    base: Path
    domain: str


class FirstBootData(BaseModel):
    """Sent with the guest besides its disks and memory: the secret of its first boot, if that has not happened, and the
    seed, which it has open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    password_hash: str | None = Field(max_length=1024, repr=False)
    seed_bytes: int = Field(ge=0, le=MOST_SEED)


@asynccontextmanager
async def dial_streams(
    open_stream: OpenStream, streams: LiveStreams
) -> AsyncIterator[tuple[trio.abc.Stream, trio.abc.Stream, Sequence[trio.abc.Stream]]]:
    """Open the streams of `streams` for the length of the block. Raises `HostError(interrupted)` if one breaks within
    the block."""
    async with AsyncExitStack() as stack:
        opened = []
        try:
            # Both ends open the streams in the same order and one after the other, because a token is valid for one
            # stream.
            for token in (streams.libvirt, streams.memory, *streams.disks):
                opened.append(await open_stream(token))
                stack.push_async_callback(close, opened[-1])
        except OSError as error:
            raise cut_short(f"the controller could not be reached ({error})") from error
        words, memory, *disks = opened
        try:
            yield words, memory, disks
        except Exception as error:
            raise _reason(error) from error


async def line(stream: trio.abc.Stream) -> bytes:
    line = bytearray()
    with trio.fail_after(READY_SECONDS):
        while not line.endswith(b"\n"):
            if len(line) > _MOST_LINE:
                raise unreadable()
            line += await _some(stream, 1)
    return bytes(line[:-1])


async def exactly(stream: trio.abc.Stream, count: int) -> bytes:
    data = bytearray()
    with trio.fail_after(READY_SECONDS):
        while len(data) < count:
            data += await _some(stream, count - len(data))
    return bytes(data)


async def _some(stream: trio.abc.Stream, most: int) -> bytes | bytearray:
    data = await stream.receive_some(most)
    if not data:
        raise trio.BrokenResourceError("ended")
    return data


def cut_short(why: str) -> HostError:
    return HostError(
        FailureCode.INTERRUPTED, f"The live move was cut short: {why.rstrip('.')}; the machine is where it was."
    )


def unreadable() -> HostError:
    return HostError(
        FailureCode.INVALID, "The other host sent something that is not a live migration; nothing was kept."
    )


def _reason(error: Exception) -> Exception:
    """The one failure to report of a block whose streams were handled by several tasks."""
    failures = list(_leaves(error))
    # When one stream breaks, the others break with it, so a group of such errors is one event. If the other agent or
    # the gate has given a reason, that reason is reported instead of any of these errors.
    for failure in failures:
        if isinstance(failure, HostError):
            return failure
    if all(
        isinstance(each, trio.BrokenResourceError | trio.ClosedResourceError | trio.TooSlowError) for each in failures
    ):  # Any other error among them is a defect, and must not look like a network failure.
        return cut_short("the other host disconnected")
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)
