"""Servers elsewhere: TCP with a password, and TLS that is verified when the URL asks for it."""

from __future__ import annotations

import random
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import trio

from svc_actors.store import Database
from svc_actors.store import database as pool_module
from svc_common.errors import ErrorCode, ServiceError
from tests.support.certificates import self_signed
from tests.support.postgres_proxy import Proxy, tls_proxy_to
from tests.support.postgres_server import own_server, until


@dataclass(frozen=True)
class Remote:
    """A database behind a port that speaks TLS with a self-signed certificate."""

    database: str
    port: int
    certificate: Path
    proxy: Proxy

    def url(self, *, sslmode: str, host: str = "localhost", certificate: Path | None = None) -> str:
        root = f"&sslrootcert={quote(str(certificate or self.certificate), safe='')}" if "verify" in sslmode else ""
        return f"postgresql://svc@{host}:{self.port}{self.database}?sslmode={sslmode}{root}"


@pytest.fixture
async def remote(database_url: str, tmp_path: Path) -> AsyncIterator[Remote]:
    certificate = self_signed(tmp_path).certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    async with tls_proxy_to(database_url, context) as (proxy, port):
        yield Remote(urlsplit(database_url).path, port, certificate, proxy)


@pytest.mark.parametrize(("sslmode", "encrypted"), [("disable", False), ("require", True), ("verify-full", True)])
async def test_a_server_on_tcp_serves_with_and_without_tls(remote: Remote, sslmode: str, encrypted: bool) -> None:
    async with Database.open(remote.url(sslmode=sslmode)) as database:
        assert await database.fetchval("SELECT 'hello'") == "hello"
        assert bool(remote.proxy.encrypted) is encrypted
        large = "0123456789" * 400_000
        assert await database.fetchval("SELECT $1::text", large) == large


@pytest.mark.parametrize("sslmode", ["disable", "require"])
async def test_a_query_given_up_over_the_network_is_stopped_and_leaves_no_reply_behind(
    remote: Remote, sslmode: str
) -> None:
    choose = random.Random(3)
    given_up = 0
    async with Database.open(remote.url(sslmode=sslmode), size=3) as database:

        async def ask(number: int) -> None:
            nonlocal given_up
            with trio.move_on_after(choose.choice([0.001, 0.01, 1000])) as scope:
                asked = "SELECT $1::int, repeat('x', $2::int) FROM pg_sleep(0.002)"
                row = await database.fetchrow(asked, number, choose.choice([1, 100_000]))
                assert row is not None
                assert row[0] == number
            given_up += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(ask, number)
        assert given_up > 0

        with trio.move_on_after(0.05):
            await database.execute("SELECT pg_sleep(600) /* abandoned */")

        async def nobody_works_on_it() -> bool:
            return not await database.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%abandoned%' AND pid <> pg_backend_pid()"
            )

        await until(nobody_works_on_it)


async def test_a_certificate_that_cannot_be_verified_is_refused(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CONNECT_TIMEOUT", 0.2)
    (tmp_path / "other").mkdir()
    other = self_signed(tmp_path / "other").certificate
    for url in (
        remote.url(sslmode="verify-full", host="127.0.0.1"),
        remote.url(sslmode="verify-full", certificate=other),
    ):
        with pytest.raises(ServiceError) as caught:
            async with Database.open(url):
                pytest.fail("the certificate is not the one that was asked for")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)


async def test_a_connection_cut_during_a_query_over_tls_is_unavailable(remote: Remote) -> None:
    async with Database.open(remote.url(sslmode="require")) as database:
        remote.proxy.after = lambda piece: b"pg_sleep" in piece
        with pytest.raises(ServiceError) as caught:
            await database.execute("SELECT pg_sleep(0.01)")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        remote.proxy.after = lambda piece: False
        assert await database.fetchval("SELECT 1") == 1


def signed_in(url: str, whom: str) -> str:
    """The same database for another role, with its password where it has one."""
    return re.sub(r"//\w+@", f"//{whom}@", url)


async def test_a_password_is_needed_and_never_told() -> None:
    async with own_server() as (url, folder), Database.open(signed_in(url, "postgres"), size=1) as superuser:
        await superuser.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        rules = folder / "cluster" / "pg_hba.conf"
        rules.write_text("local all guest scram-sha-256\n" + rules.read_text())
        await superuser.execute("SELECT pg_reload_conf()")
        async with Database.open(signed_in(url, "guest:right")) as database:
            assert await database.fetchval("SELECT current_user") == "guest"
        with pytest.raises(ServiceError) as caught:
            async with Database.open(signed_in(url, "guest:mistaken")):
                pytest.fail("nobody signs in with a wrong password")
        assert "password authentication failed" in caught.value.message
        assert "mistaken" not in caught.value.message
