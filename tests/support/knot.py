"""A real Knot on a port of its own, in a folder of its own, and questions to it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import dns.asyncquery
import dns.message
import dns.rdatatype

from svc_webhost.knot.configuration import KnotSettings
from svc_webhost.knot.server import SERVICE, KnotServer
from tests.support.programs import ChildLauncher, child_launcher
from tests.support.stack import free_port


@dataclass(frozen=True)
class RealKnot:
    server: KnotServer
    launcher: ChildLauncher

    async def answers(self, name: str, type_: str, *, at: str = "127.0.0.1") -> set[str]:
        """What it answers, over TCP so that nothing is too long: each record's data as a zone file has it."""
        question = dns.message.make_query(f"{name}.", type_)
        answer = await dns.asyncquery.tcp(question, at, port=self.server.settings.port, timeout=60)
        return {rdata.to_text() for rrset in answer.answer for rdata in rrset}

    async def kill(self) -> None:
        await self.launcher.kill(SERVICE)

    async def start(self) -> None:
        await self.server.ensure()

    @property
    def log(self) -> str:
        return self.server.folders.log.read_text()


@asynccontextmanager
async def real_knot() -> AsyncIterator[RealKnot]:
    # Not pytest's folder: Knot's own user has to reach it.
    with tempfile.TemporaryDirectory(prefix="svc-knot-") as folder:
        Path(folder).chmod(0o711)
        listen = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
        async with child_launcher() as launcher:
            knot = RealKnot(KnotServer(Path(folder) / "knot", KnotSettings(listen, free_port()), launcher), launcher)
            await knot.start()
            yield knot


def knotc(knot: RealKnot, *arguments: str) -> None:
    """As an operator would by hand."""
    subprocess.run(["knotc", "-s", str(knot.server.folders.socket), *arguments], check=True, capture_output=True)
