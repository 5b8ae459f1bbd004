"""A process that a test may kill: opens a libvirt host and performs the operations given on standard input.

    python -m tests.nodeagent.hypervisor.run_host FOLDER IMAGE DOMAIN_PREFIX DEVICE_PREFIX TABLE < operations

One operation a line, as JSON; one result a line, as JSON. A token `move:PATH` opens the stream of a move that is
recorded in that file; a token `file:PATH` is of a file that is another than IMAGE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from pydantic import TypeAdapter

from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.protocol import NodeOperation
from tests.nodeagent.hypervisor.builders import FileStream, RecordedMove, silent

OPERATION: TypeAdapter[NodeOperation] = TypeAdapter(NodeOperation)


async def main(*arguments: str) -> None:
    folder, image, *names = arguments

    async def open_stream(token: str) -> trio.abc.Stream:
        if token.startswith("move:"):
            return RecordedMove(Path(token.removeprefix("move:")))
        if token.startswith("file:"):
            return FileStream(await trio.Path(token.removeprefix("file:")).read_bytes())
        return FileStream(await trio.Path(image).read_bytes())

    async with LibvirtHost.open(Path(folder), open_stream=open_stream, naming=Naming(*names)) as host:
        for line in sys.stdin:
            result = await host.perform(OPERATION.validate_json(line), silent)
            print(result.model_dump_json(), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
