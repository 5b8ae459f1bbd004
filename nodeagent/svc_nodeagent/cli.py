"""`svc-nodeagent`: join a controller (`enrol`), serve it (`run`), or show this node's state (`status`).

The operator's values are passed in the environment, since process lists show arguments: SVC_CONTROLLER, SVC_TOKEN,
SVC_FINGERPRINT.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import httpx
import structlog
import trio

from svc_nodeagent.agent import Agent, OpenHost
from svc_nodeagent.config import AgentFolder, Identity, NotEnrolled
from svc_nodeagent.enrol import EnrolmentRefused, enrol, host_uuid
from svc_nodeagent.host import Host, OpenStream
from svc_nodeagent.journal import Journal
from svc_nodeagent.launcher import RELEASE_VARIABLE
from svc_nodeagent.outbound import Network
from svc_nodeagent.simulated import SimulatedHost
from svc_nodeagent.telemetry import configure_logging
from svc_nodeagent.upgrade import Upgrader
from svc_nodeagent.version import agent_version

DEFAULT_DATA: Final = Path("/var/lib/svc-node")
log = structlog.get_logger(__name__)


class _Unusable(Exception):  # noqa: N818 - named for what it says
    """A mistake in how the command was called; its text is for the caller."""


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    configure_logging(least="debug" if options.verbose else "info")
    folder = AgentFolder(options.data)
    try:
        match options.command:
            case "enrol":
                trio.run(_enrol, folder)
            case "run":
                with _only_one(folder):
                    trio.run(_run, folder, options.simulated, options.prefix, options.bridge, options.image_network)
            case _:
                _status(folder)
    except (_Unusable, NotEnrolled, EnrolmentRefused) as error:
        sys.exit(f"svc-nodeagent: {error}")
    except httpx.TransportError as error:
        sys.exit(f"svc-nodeagent: the controller cannot be reached ({error}); nothing was changed, try again")


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data", type=Path, default=DEFAULT_DATA, help=f"data folder (default {DEFAULT_DATA})")
    common.add_argument("--verbose", action="store_true", help="log more")
    parser = argparse.ArgumentParser(prog="svc-nodeagent", description="The agent of a compute node.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("enrol", parents=[common], help="join the controller named in the environment")
    run = commands.add_parser("run", parents=[common], help="serve the controller until stopped")
    run.add_argument("--simulated", action="store_true", help="machines in memory instead of libvirt, for tests")
    run.add_argument(
        "--prefix",
        default="svc",
        help="prefix of the names of domains, taps and the nftables table; two agents on one host need different ones",
    )
    run.add_argument("--bridge", help="the host's bridge that holds its uplink: bridged NICs are plugged into it")
    run.add_argument(
        "--image-network",
        type=ip_network,
        action="append",
        default=[],
        metavar="CIDR",
        help="a private network from which images may be fetched, for a mirror of your own; may be repeated",
    )
    commands.add_parser("status", parents=[common], help="show which node this is")
    return parser


async def _enrol(folder: AgentFolder) -> None:
    enrolment = await enrol(
        folder,
        controller=_given("SVC_CONTROLLER"),
        token=_given("SVC_TOKEN"),
        fingerprint=_given("SVC_FINGERPRINT"),
        hostname=socket.getfqdn(),
        host=host_uuid(),
    )
    sys.stdout.write(f"joined as node {enrolment.node_id}\n")


async def _run(
    folder: AgentFolder, simulated: bool, prefix: str, bridge: str | None, image_networks: Sequence[Network]
) -> None:
    if bridge is not None and bridge.startswith(prefix):
        raise _Unusable(f"{bridge} starts with {prefix}, like the names of guests' taps; rename the bridge")
    release = os.environ.get(RELEASE_VARIABLE)
    upgrader = Upgrader(folder.path, release, folder.authority) if release else None
    agent = Agent(folder, Journal.open(folder.journal), upgrader=upgrader)
    log.info("agent.started", node_id=str(agent.node_id), data=str(folder.path))
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, agent)
        await agent.run(_simulated(folder) if simulated else _libvirt(folder, prefix, bridge, image_networks))
        nursery.cancel_scope.cancel()
    log.info("agent.stopped")


async def _stop_on_signal(agent: Agent, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            log.info("agent.signalled", signal=signal.Signals(number).name)
            agent.stop()


def _libvirt(folder: AgentFolder, prefix: str, bridge: str | None, image_networks: Sequence[Network]) -> OpenHost:
    # Imported here and not at the top: a simulated node also runs where libvirt is not installed.
    from svc_nodeagent.hypervisor import LibvirtHost, Naming

    naming = Naming(domain_prefix=f"{prefix}-", device_prefix=prefix, table=prefix)

    def open_host(open_stream: OpenStream) -> AbstractAsyncContextManager[Host]:
        return LibvirtHost.open(
            folder.path / "host",
            open_stream=open_stream,
            naming=naming,
            bridge=bridge,
            image_networks=image_networks,
            controller=folder.read_enrolment().gateway_host,
        )

    return open_host


def _simulated(folder: AgentFolder) -> OpenHost:
    @asynccontextmanager
    async def open_host(_: OpenStream) -> AsyncIterator[Host]:
        state = folder.path / "simulated.json"
        async with SimulatedHost(socket.gethostname(), host_uuid(), state_file=state) as host:
            yield host

    return open_host


def _status(folder: AgentFolder) -> None:
    enrolment = folder.read_enrolment()
    identity = Identity.load(folder.identity, folder.authority)
    journal = Journal(None)
    journal.read(folder.journal)
    shown = {
        "version": agent_version(),
        "node_id": str(enrolment.node_id),
        "gateway": f"{enrolment.gateway_host}:{enrolment.gateway_port}",
        "running": _is_held(folder),
        "certificate_expires_at": identity.not_after.isoformat(),
        "certificate_days_left": (identity.not_after - datetime.now(UTC)).days,
        "operations_under_way": len(journal.started),
        "outcomes_not_acknowledged": len(journal.outcomes),
    }
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")


def _given(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise _Unusable(f"{variable} is not set; run the whole command that the controller shows for a new node")
    return value


@contextmanager
def _only_one(folder: AgentFolder) -> Iterator[None]:
    """Hold the lock of the data folder for the length of the block. With two agents on one journal, each would execute
    operations that the other has executed."""
    if not folder.path.is_dir():
        raise NotEnrolled(f"{folder.path} does not exist; run the command that the controller shows for a new node")
    with folder.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _Unusable(f"another agent runs on {folder.path}") from None
        yield


def _is_held(folder: AgentFolder) -> bool:
    try:
        with _only_one(folder):
            return False
    except _Unusable:
        return True


if __name__ == "__main__":
    main()
