"""Pebble, an ACME authority for tests, and the DNS server by which it finds the names that it is to vouch for.

It refuses one good nonce in ten, looks at challenges for real, and never takes an authorization for granted.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import trio

from tests.support.certificates import self_signed
from tests.support.stack import Program, free_port

_ENVIRONMENT = {"PEBBLE_WFE_NONCEREJECT": "10", "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0"}


@dataclass(frozen=True)
class Pebble:
    """`roots`: who vouches for the directory's own certificate. `challenge_port`: where it looks for http-01."""

    directory: str
    roots: Path
    challenge_port: int
    program: Program
    _management: str
    _names: str

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(self.roots)), timeout=60)

    async def root(self) -> str:
        """Who vouches for the certificates that it makes, in PEM: another one at each start."""
        async with self.client() as http:
            return (await http.get(f"{self._management}/roots/0")).text

    async def lead(self, name: str, address: str | None) -> None:
        """Have a name lead to an address, or to none; names lead to 127.0.0.1."""
        async with httpx.AsyncClient(timeout=60) as http:
            if address is None:
                answer = await http.post(f"{self._names}/set-servfail", json={"host": name})
            else:
                await http.post(f"{self._names}/clear-servfail", json={"host": name})
                answer = await http.post(f"{self._names}/add-a", json={"host": name, "addresses": [address]})
            answer.raise_for_status()

    async def start(self) -> None:
        self.program.start()
        async with self.client() as http:
            with trio.fail_after(60):
                while True:
                    try:
                        (await http.get(self.directory)).raise_for_status()
                        return
                    except httpx.TransportError:
                        assert self.program.running(), self.program.tail()
                        await trio.sleep(0.05)  # The outside world is asked again.


@asynccontextmanager
async def open_pebble(
    folder: Path,
    *,
    lifetime_seconds: int | None = None,
    external: Mapping[str, str] | None = None,
    resolver: str | None = None,
) -> AsyncIterator[Pebble]:
    """An authority that makes certificates of this lifetime. `external`: key ids and keys of its customers, one of whom
    an account has to be of. `resolver`: the name server, as address:port, that it asks instead of its own."""
    folder.mkdir()
    files = self_signed(folder)
    directory, management, challenges, dns, names = (free_port() for _ in range(5))
    settings = {
        "listenAddress": f"127.0.0.1:{directory}",
        "managementListenAddress": f"127.0.0.1:{management}",
        "certificate": str(files.certificate),
        "privateKey": str(files.key),
        "httpPort": challenges,
        "tlsPort": free_port(),
        "externalAccountBindingRequired": external is not None,
        "externalAccountMACKeys": dict(external or {}),
        **({"certificateValidityPeriod": lifetime_seconds} if lifetime_seconds is not None else {}),
    }
    (folder / "pebble.json").write_text(json.dumps({"pebble": settings}))
    names_of_its_own = Program(
        "challtestsrv",
        [
            "pebble-challtestsrv",
            *("-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""),
            *("-dns01", f"127.0.0.1:{dns}", "-management", f"127.0.0.1:{names}"),
            *("-http01", "", "-https01", "", "-tlsalpn01", ""),
        ],
        folder / "challtestsrv.log",
    )
    program = Program(
        "pebble",
        ["pebble", "-config", str(folder / "pebble.json"), "-dnsserver", resolver or f"127.0.0.1:{dns}"],
        folder / "pebble.log",
        dict(os.environ) | _ENVIRONMENT,
    )
    base = "https://localhost"
    pebble = Pebble(
        f"{base}:{directory}/dir",
        files.certificate,
        challenges,
        program,
        f"{base}:{management}",
        f"http://127.0.0.1:{names}",
    )
    names_of_its_own.start()
    try:
        await pebble.start()
        yield pebble
    finally:
        with trio.CancelScope(shield=True, relative_deadline=20):
            for each in (program, names_of_its_own):
                if each.running():
                    await each.kill()
