"""The authority says when it would have a certificate renewed (RFC 9773), and is followed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography import x509

from svc_actors.acme import Http01, Window
from svc_actors.certificates import IssuedCertificate, IssuingServices, Keeper, read_certificate
from svc_actors.certificates.steps import CertificateWithKey
from svc_actors.certificates.suggestions import certificate_id, due_by, pause_before_next
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from tests.certificates.test_keeper import SETTINGS
from tests.support.acme_authority import Answer, FakeAuthority

NOW = datetime(2026, 11, 30, tzinfo=UTC)
DAY = timedelta(days=1)
# The certificate of RFC 9773, appendix A, and its name there.
RFC_9773 = """-----BEGIN CERTIFICATE-----
MIIBQzCB66ADAgECAgUAh2VDITAKBggqhkjOPQQDAjAVMRMwEQYDVQQDEwpFeGFt
cGxlIENBMCIYDzAwMDEwMTAxMDAwMDAwWhgPMDAwMTAxMDEwMDAwMDBaMBYxFDAS
BgNVBAMTC2V4YW1wbGUuY29tMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEeBZu
7cbpAYNXZLbbh8rNIzuOoqOOtmxA1v7cRm//AwyMwWxyHz4zfwmBhcSrf47NUAFf
qzLQ2PPQxdTXREYEnKMjMCEwHwYDVR0jBBgwFoAUaYhba4dGQEHhs3uEe6CuLN4B
yNQwCgYIKoZIzj0EAwIDRwAwRAIge09+S5TZAlw5tgtiVvuERV6cT4mfutXIlwTb
+FYN/8oCIClDsqBklhB9KAelFiYt9+6FDj3z4KGVelYM5MdsO3pK
-----END CERTIFICATE-----
"""


def test_a_certificate_has_the_name_of_the_rfcs_example() -> None:
    assert certificate_id(RFC_9773) == "aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"


@pytest.mark.parametrize("seconds", [None, 0.0, 1.0, 21600.0, 10.0**9])
def test_the_authority_is_asked_again_within_a_day_but_not_at_once(seconds: float | None) -> None:
    assert timedelta(minutes=10) <= pause_before_next(seconds) <= DAY


def test_a_time_within_the_window_is_chosen_once() -> None:
    window = Window(start=NOW + DAY, end=NOW + 3 * DAY)

    chosen = due_by(window, NOW + 60 * DAY, NOW + 90 * DAY)

    assert window.start <= chosen <= window.end
    assert due_by(window, chosen, NOW + 90 * DAY) == chosen


@pytest.mark.parametrize(("start", "end"), [(3, 1), (1, 91), (100, 200), (5, 5)])
def test_a_window_that_leaves_no_certificate_in_use_is_no_advice(start: int, end: int) -> None:
    window = Window(start=NOW + start * DAY, end=NOW + end * DAY)

    assert due_by(window, NOW + 60 * DAY, NOW + 90 * DAY) == NOW + 60 * DAY


class World:
    """A certificate for one name, kept step by step."""

    def __init__(self, actors: ActorSystem, database: Database) -> None:
        self.authority, self.database = FakeAuthority(), database
        self.installed: list[CertificateWithKey] = []
        issuing = IssuingServices(database, Sealer(b"k" * 32))
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))
        self.keeper = Keeper(
            actors, "service", ("controller.example",), SETTINGS, Http01(), self.install, open_http=self.http
        )

    def http(self) -> httpx.AsyncClient:
        return self.authority.client()

    async def install(self, issued: CertificateWithKey) -> None:
        self.installed.append(issued)

    async def got(self) -> CertificateWithKey:
        await self.keeper.install_current()
        await self.keeper.attempt()
        return self.installed[-1]

    async def in_six_hours(self) -> datetime:
        """What is due then is done; returns when the next step is due."""
        await self.database.execute("UPDATE acme_certificates SET renewal_info_at = now()")
        return await self.keeper.attempt()

    async def due_at(self) -> datetime:
        record = await read_certificate(self.database, "service")
        assert record is not None
        return record.due_at


@pytest.fixture(autouse=True)
def asking_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc_actors.certificates.keeper.SHORTEST_POLL_SECONDS", 0.0)
    monkeypatch.setattr("svc_actors.certificates.keeper.POLL_SECONDS", 0.0)


async def test_a_certificate_that_is_to_be_revoked_is_replaced_at_once(database: Database) -> None:
    async with ActorSystem.open() as actors:
        world = World(actors, database)
        now = datetime.now(UTC)
        world.authority.window = (now + 50 * DAY, now + 60 * DAY)
        first = await world.got()
        await world.in_six_hours()
        planned = await world.due_at()

        world.authority.window = (now - 2 * DAY, now - DAY)
        await world.in_six_hours()
        await world.keeper.attempt()

    assert now + 50 * DAY <= planned <= now + 60 * DAY
    second = world.installed[-1]
    assert serial(second) != serial(first)
    assert world.authority.replaced == [None, certificate_id(first.chain)]


async def test_an_order_that_may_not_replace_is_given_without(database: Database) -> None:
    async with ActorSystem.open() as actors:
        world = World(actors, database)
        now = datetime.now(UTC)
        world.authority.window = (now - 2 * DAY, now - DAY)
        first = await world.got()
        world.authority.replaced.append(certificate_id(first.chain))
        await world.in_six_hours()
        await world.keeper.attempt()

    assert serial(world.installed[-1]) != serial(first)
    assert world.authority.replaced[-1] is None


@pytest.mark.parametrize("status", [404, 429, 500])
async def test_an_authority_that_does_not_say_changes_nothing(database: Database, status: int) -> None:
    async with ActorSystem.open() as actors:
        world = World(actors, database)
        now = datetime.now(UTC)
        await world.got()
        planned = await world.due_at()
        world.authority.window = (now, now + DAY)
        world.authority.fail("renewal-info", Answer(status, text="no"))

        until = await world.in_six_hours()

    assert await world.due_at() == planned
    assert now + timedelta(hours=5) < until < now + DAY, "it is asked again"
    assert len(world.installed) == 1
    assert await database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0


def serial(issued: CertificateWithKey) -> int:
    return x509.load_pem_x509_certificate(issued.chain.encode()).serial_number
