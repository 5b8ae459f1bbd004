"""What the demonstrations of both services share: a server's free resources, a run that Ctrl-C ends, and the command
line."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio
from rich.console import Console

from svc.cli.failures import Exit, Failure, first_cause

BIN: Final = Path(__file__).resolve().parent.parent / ".venv" / "bin"
DEFAULT_DATA: Final = Path("/var/lib/svc")
SAY: Final = Console(stderr=True, highlight=False)


class Demonstration(Protocol):
    async def up(self) -> None:
        """Start everything and print what there is to see. May be repeated. Raises `Failure`."""
        ...

    async def down(self) -> None:
        """Stop everything; the data stays."""
        ...


@dataclass(frozen=True)
class CommandLine:
    program: str
    description: str
    port: int
    port_help: str
    detach_help: str
    stop_help: str
    interrupted: str
    """The message for Ctrl-C before everything runs."""


def require_root(why: str) -> None:
    if os.geteuid() != 0:
        raise Failure(Exit.FORBIDDEN, f"this {why}, so it has to run as root")


def require_room(data: Path, gib: int) -> None:
    """The folder, created if absent, on a disk with so much free space."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o755)
    except (FileExistsError, NotADirectoryError) as error:
        raise Failure(
            Exit.CONFLICT, f"{data} is no folder, and none can be made there", "choose another --data DIR"
        ) from error
    free = shutil.disk_usage(data).free / 2**30
    if free < gib:
        what = f"{data} has {free:.1f} GiB left; {gib} GiB are needed"
        raise Failure(Exit.CAPACITY, what, "make room, or choose another place with --data DIR")


def require_free(ports: Mapping[int, str], hint: str) -> None:
    """Ports, each with its purpose. `hint` says how to choose others."""
    for port, purpose in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                what = f"port {port}, meant for {purpose}, is taken by another program"
                raise Failure(Exit.CONFLICT, what, f"`ss -ltnp sport = :{port}` names it; {hint}") from error


def main(line: CommandLine, make: Callable[[Path, int], Demonstration]) -> None:
    """The program: `make` gets the data folder and the port."""
    parser = argparse.ArgumentParser(prog=line.program, description=line.description)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="where everything is kept [%(default)s]")
    parser.add_argument("--port", type=int, default=line.port, help=f"{line.port_help} [%(default)s]")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--detach", action="store_true", help=line.detach_help)
    group.add_argument("--stop", action="store_true", help=line.stop_help)
    arguments = parser.parse_args()
    demonstration = make(arguments.data.resolve(), arguments.port)
    try:
        if arguments.stop:
            trio.run(demonstration.down)
        elif arguments.detach:
            trio.run(demonstration.up)
        else:
            trio.run(_until_interrupted, demonstration, line.program)
    except BaseException as error:
        cause = first_cause(error)
        if isinstance(cause, Failure):
            cause.show()
            raise SystemExit(cause.exit_code) from None
        if isinstance(cause, KeyboardInterrupt):
            print(line.interrupted, file=sys.stderr)
            raise SystemExit(int(Exit.INTERRUPTED)) from None
        raise


async def _until_interrupted(demonstration: Demonstration, program: str) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def up() -> None:
                await demonstration.up()
                SAY.print("\nCtrl-C stops it.", style="dim")

            nursery.start_soon(up)
            await anext(aiter(signals))
            nursery.cancel_scope.cancel()
    SAY.print(f"\nstopping; Ctrl-C again leaves the rest to {program} --stop")
    await demonstration.down()
