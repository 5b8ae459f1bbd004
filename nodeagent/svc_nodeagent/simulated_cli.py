"""Simulated nodes for a controller: agents that speak the real protocol, with machines in memory.

    SVC_TOKEN=svcvm_... tools/simulate-nodes 100 --machines 20 --controller https://127.0.0.1:8443 --ca authority.pem

The token is an administrator's API token with the admin scope; it is needed to let new nodes join, not to run those
that have joined. It is no argument: everybody on the computer can read those of every process. Nodes are kept in the
data folder and come back as they were.
"""

from __future__ import annotations

import argparse
import os
import resource
import ssl
import sys
from pathlib import Path

import httpx
import trio

from svc_nodeagent.enrol import EnrolmentRefused
from svc_nodeagent.simulated import Behaviour
from svc_nodeagent.simulated_fleet import Fleet
from svc_nodeagent.telemetry import configure_logging


def main() -> None:
    options = parse()
    configure_logging(least="info" if options.verbose else "warning")
    allow_many_sockets()
    fleet = Fleet(
        options.data,
        options.nodes,
        options.machines,
        options.prefix,
        Behaviour(
            seed=options.seed,
            seconds=(options.delay[0], options.delay[1]),
            pull_seconds=(options.pull[0], options.pull[1]),
            failure_rate=options.failure_rate,
        ),
    )
    try:
        trio.run(simulate, fleet, options)
    except KeyboardInterrupt:
        sys.exit(130)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="simulate-nodes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nodes", type=int, help="how many nodes")
    parser.add_argument("--machines", type=int, default=0, help="machines that each node has from the beginning")
    parser.add_argument("--controller", default=os.environ.get("SVC_URL", "https://127.0.0.1:8443"))
    parser.add_argument("--ca", default=os.environ.get("SVC_CA"), help="the authority to trust, PEM; default: SVC_CA")
    parser.add_argument("--data", type=Path, default=Path("data/simulated-nodes"))
    parser.add_argument("--prefix", default="sim", help="names are PREFIX-0001 and so on")
    parser.add_argument("--seed", type=int, default=0)
    for name, what in (("--delay", "seconds an operation takes"), ("--pull", "seconds that reading an image takes")):
        parser.add_argument(name, type=float, nargs=2, default=[0.0, 0.0], metavar=("LEAST", "MOST"), help=what)
    parser.add_argument("--failure-rate", type=float, default=0.0, help="share of operations that fail")
    parser.add_argument("--verbose", action="store_true", help="log connections")
    return parser.parse_args()


async def simulate(fleet: Fleet, options: argparse.Namespace) -> None:
    await enrol(fleet, options)
    async with trio.open_nursery() as nursery:
        await nursery.start(fleet.run)
        started, shown = trio.current_time(), -1
        while True:
            if fleet.connected != shown:
                shown = fleet.connected
                elapsed = trio.current_time() - started
                say(f"{elapsed:8.1f} s  {shown} of {fleet.size} nodes connected")
            await trio.sleep(0.5)


async def enrol(fleet: Fleet, options: argparse.Namespace) -> None:
    if all(fleet.folder_of(name).enrolment.exists() for name in fleet.names()):
        return
    token = os.environ.get("SVC_TOKEN")
    if not token:
        sys.exit("simulate-nodes: new nodes need SVC_TOKEN in the environment to join")
    context = ssl.create_default_context(cafile=options.ca)
    headers = {"Authorization": f"Bearer {token}"}
    api = options.controller.rstrip("/") + "/api/v1"
    async with httpx.AsyncClient(verify=context, headers=headers, timeout=60, trust_env=False, base_url=api) as client:
        joined = 0

        def count(_: str) -> None:
            nonlocal joined
            joined += 1
            if joined % 50 == 0:
                say(f"{joined} nodes joined")

        failures: list[Exception] = []
        try:
            await fleet.enrol(client, count)
        except* (httpx.HTTPError, EnrolmentRefused) as errors:
            failures.extend(errors.exceptions)
        if failures:
            sys.exit(f"simulate-nodes: not every node joined: {failures[0]}")


def allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
