"""A certificate is got and renewed, whatever the authority, the network and this process do meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import httpx
import pytest
import trio
from cryptography import x509

from svc_actors.acme import AuthorityAway, Http01, RateLimited, Refused, load_key
from svc_actors.certificates import (
    AcmeSettings,
    CertificateRecord,
    IssuedCertificate,
    IssuingServices,
    Keeper,
    read_certificate,
)
from svc_actors.certificates.left_out import LONGEST_RETRY_AFTER
from svc_actors.certificates.steps import CertificateWithKey
from svc_actors.certificates.timing import FIRST_PAUSE, LONGEST_PAUSE, pause_after, renewal_of
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, keep_running, service_itself
from tests.support.acme_authority import DIRECTORY, Answer, FakeAuthority, problem

NAMES = ("controller.example",)
SETTINGS = AcmeSettings("ops@provider.example", NAMES, terms_agreed=True, directory=DIRECTORY)


@dataclass
class Shown:
    """What was put where it is shown from, the last one last."""

    installed: list[CertificateWithKey] = field(default_factory=list)
    came: trio.Event = field(default_factory=trio.Event)

    async def install(self, issued: CertificateWithKey) -> None:
        self.installed.append(issued)
        self.came.set()
        self.came = trio.Event()

    async def until(self, number: int) -> CertificateWithKey:
        with trio.fail_after(60):
            while len(self.installed) < number:
                await self.came.wait()
        return self.installed[number - 1]


@dataclass
class House:
    """A process that keeps one certificate; another one may follow it on the same database."""

    database: Database
    authority: FakeAuthority
    shown: Shown
    challenges: Http01
    name: str = "service"

    @asynccontextmanager
    async def process(
        self, settings: AcmeSettings = SETTINGS, names: Sequence[str] = NAMES, http: httpx.AsyncClient | None = None
    ) -> AsyncIterator[Keeper[Http01]]:
        issuing = IssuingServices(self.database, Sealer(b"k" * 32))
        async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
            actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))
            opened = self.authority.client if http is None else lambda: http
            keeper = Keeper(actors, self.name, names, settings, self.challenges, self.shown.install, open_http=opened)
            await keeper.install_current()
            nursery.start_soon(keep_running, "certificate", keeper.run)
            yield keeper
            nursery.cancel_scope.cancel()

    async def record(self) -> CertificateRecord:
        record = await read_certificate(self.database, self.name)
        assert record is not None
        return record

    async def failed(self, failures: int) -> CertificateRecord:
        """The record once so many attempts in a row have failed."""
        with trio.fail_after(60):
            while (record := await self.record()).failures < failures:
                await trio.sleep(0.01)  # The record is what is waited for.
        return record

    async def alerts(self) -> list[str]:
        rows = await self.database.fetch("SELECT message FROM alerts WHERE closed_at IS NULL")
        return [row["message"] for row in rows]


@pytest.fixture(autouse=True)
def asking_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authority of these tests has decided by then."""
    monkeypatch.setattr("svc_actors.certificates.keeper.SHORTEST_POLL_SECONDS", 0.0)


@pytest.fixture
def house(database: Database) -> House:
    return House(database, FakeAuthority(), Shown(), Http01())


def leaf(issued: CertificateWithKey) -> x509.Certificate:
    found = x509.load_pem_x509_certificate(issued.chain.encode())
    assert found.public_key() == load_key(issued.key).public_key()
    return found


async def test_a_certificate_is_got_recorded_and_shown_with_its_key(house: House) -> None:
    asked: dict[str, str | None] = {}

    def look(token: str, name: str) -> None:
        asked[token] = house.challenges.proof(token)

    house.authority.verdict = look

    async with house.process():
        issued = await house.shown.until(1)
    record = await house.record()

    assert leaf(issued).not_valid_after_utc == record.not_after
    assert record.issuer == "Test Authority"
    assert (record.failures, record.last_error, record.ordering) == (0, None, False)
    [(token, proof)] = asked.items()
    assert str(proof).startswith(f"{token}."), "answered while the authority looked"
    assert house.challenges.proof(token) is None, "and not any longer"
    [row] = await house.database.fetch("SELECT * FROM audit WHERE operation = 'certificate.issue'")
    assert (row["actor"], row["target_name"]) == ("system", "controller.example")


async def test_the_next_process_shows_it_without_asking_for_another(house: House) -> None:
    async with house.process():
        first = await house.shown.until(1)
    asked = len(house.authority.asked)

    async with house.process():
        again = await house.shown.until(2)

    assert again == first
    assert len(house.authority.asked) == asked


async def test_it_is_renewed_with_a_third_of_its_life_left_and_another_key(house: House) -> None:
    house.authority.lifetime = timedelta(seconds=3)

    async with house.process():
        first, second = await house.shown.until(1), await house.shown.until(2)
    left = leaf(first).not_valid_after_utc - leaf(second).not_valid_before_utc

    assert leaf(first).public_key() != leaf(second).public_key()
    assert timedelta() < left < timedelta(seconds=2.2), "certificates count whole seconds"
    assert house.authority.count("account") == 1, "the account is known"


def test_the_renewal_is_due_with_a_third_left_and_not_for_everybody_at_once() -> None:
    begin = datetime(2026, 11, 22, tzinfo=UTC)
    end = begin + timedelta(days=90)

    due = [renewal_of(begin, end) for _ in range(200)]

    assert all(begin + timedelta(days=57) <= at <= begin + timedelta(days=60) for at in due)
    assert max(due) - min(due) > timedelta(days=2)


class Killed:
    """A transport that ends the process around one exchange with the authority: before it, or before its answer."""

    def __init__(self, authority: FakeAuthority, exchange: int, *, heard: bool) -> None:
        self._authority = authority
        self._left = exchange
        self._heard = heard
        self.dead = trio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self._left -= 1
        if self._left != 0:
            return await self._authority.answer(request)
        if self._heard:
            await self._authority.answer(request)
        self.dead.set()
        return await trio.sleep_forever()


@pytest.mark.parametrize("heard", [False, True])
async def test_a_crash_at_any_exchange_costs_no_second_certificate(house: House, heard: bool) -> None:
    """The process ends before the authority hears of a request, or before its answer is read; the next one goes on."""
    for exchange in count(1):
        house.authority, house.shown = FakeAuthority(), Shown()
        house.authority.processing = 2
        house.name = f"crash-{exchange}"
        settings = replace(SETTINGS, directory=f"{DIRECTORY}?{exchange}")
        killed = Killed(house.authority, exchange, heard=heard)
        async with trio.open_nursery() as nursery:
            async with house.process(settings, http=httpx.AsyncClient(transport=httpx.MockTransport(killed))):
                nursery.start_soon(_first, nursery.cancel_scope, killed.dead, house.shown)
                await trio.sleep_forever()

        async with house.process(settings):
            issued = await house.shown.until(1)

        made = [order.chain for order in house.authority.orders.values() if order.chain]
        assert made == [issued.chain], f"exchange {exchange}"
        assert len(house.authority.accounts) == 1
        leaf(issued)
        if not killed.dead.is_set():
            break

    assert exchange > 10, "there were no exchanges to be killed at"


async def _first(scope: trio.CancelScope, dead: trio.Event, shown: Shown) -> None:
    """End the process at its death, or when it has got its certificate."""
    async with trio.open_nursery() as nursery:

        async def wait(ended: object) -> None:
            await (dead.wait() if ended is dead else shown.until(1))
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, dead)
        nursery.start_soon(wait, shown)
    scope.cancel()


async def test_a_crash_before_it_is_shown_is_made_up_for_by_the_next_process(house: House) -> None:
    recorded = trio.Event()

    class Dying(Shown):
        async def install(self, issued: CertificateWithKey) -> None:
            recorded.set()
            await trio.sleep_forever()

    living, house.shown = house.shown, Dying()
    async with house.process():
        await recorded.wait()

    house.shown = living
    async with house.process():
        issued = await house.shown.until(1)

    assert [order.chain for order in house.authority.orders.values()] == [issued.chain]


async def test_a_failed_validation_is_told_in_the_authoritys_words_and_tried_again_later(house: House) -> None:
    seen = {"type": "urn:ietf:params:acme:error:dns", "detail": "no valid A records found for controller.example"}
    house.authority.verdict = lambda token, name: seen

    async with house.process() as keeper:
        record = await house.failed(1)
        [alert] = await house.alerts()
        house.authority.verdict = lambda token, name: None
        await keeper.renew(service_itself("certificate.renew"))
        await house.shown.until(1)

    assert record.last_error == "controller.example: no valid A records found for controller.example"
    assert record.last_error in alert
    assert "There is no certificate yet" in alert
    assert FIRST_PAUSE / 2 < record.due_at - datetime.now(UTC) <= FIRST_PAUSE
    assert await house.alerts() == []
    assert (await house.record()).failures == 0


async def test_a_certificate_stays_while_its_renewal_fails(house: House) -> None:
    async with house.process() as keeper:
        first = await house.shown.until(1)
        house.authority.fail("neworder", problem("rejectedIdentifier", "The policy forbids this name."))
        await keeper.renew(service_itself("certificate.renew"))
        record = await house.failed(1)
        [alert] = await house.alerts()

    assert record.not_after == leaf(first).not_valid_after_utc
    assert "The policy forbids this name." in alert
    assert f"The current certificate expires on {record.not_after:%Y-%m-%d}" in alert
    assert house.shown.installed == [first]


async def test_an_authority_that_is_away_is_asked_again_for_the_same_order(house: House) -> None:
    house.authority.fail("order", *[Answer(0, raises=httpx.ConnectError)])

    async with house.process() as keeper:
        record = await house.failed(1)
        ordering = record.ordering
        await keeper.renew(service_itself("certificate.renew"))
        await house.shown.until(1)

    assert "authority.test cannot be reached" in str(record.last_error)
    assert ordering
    assert len(house.authority.orders) == 1


async def test_a_rate_limit_is_kept(house: House) -> None:
    limit = problem("rateLimited", "Too many certificates already issued.", 429, retry_after="86400")
    house.authority.fail("neworder", limit)

    async with house.process():
        record = await house.failed(1)
        asked = len(house.authority.asked)
    async with house.process() as keeper:
        due_at = await keeper.attempt()

    assert due_at == record.due_at
    assert timedelta(hours=23) < record.due_at - datetime.now(UTC) <= timedelta(days=1)
    assert len(house.authority.asked) == asked, "a restart does not forget it"


@pytest.mark.parametrize(
    ("failures", "error", "left", "least", "most"),
    [
        (1, Refused("no"), None, FIRST_PAUSE * 0.75, FIRST_PAUSE),
        (2, Refused("no"), None, FIRST_PAUSE * 1.5, FIRST_PAUSE * 2),
        (50, Refused("no"), None, LONGEST_PAUSE * 0.75, LONGEST_PAUSE),
        (50, AuthorityAway("away"), timedelta(hours=10), timedelta(hours=1), timedelta(hours=1)),
        (50, AuthorityAway("away"), timedelta(hours=-1), LONGEST_PAUSE * 0.75, LONGEST_PAUSE),
        (1, RateLimited("no", retry_after=7200), timedelta(hours=1), timedelta(hours=2), timedelta(hours=2)),
        (1, RateLimited("no", retry_after=1e9), None, LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
    ],
)
def test_the_pause_grows_with_failures_and_shrinks_before_the_end(
    failures: int, error: Refused, left: timedelta | None, least: timedelta, most: timedelta
) -> None:
    assert least <= pause_after(failures, error, left) <= most


async def test_other_names_are_asked_for_at_the_next_start(house: House) -> None:
    async with house.process():
        await house.shown.until(1)

    async with house.process(names=("controller.example", "panel.example")):
        renewed = await house.shown.until(3)

    names = leaf(renewed).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["controller.example", "panel.example"]
    assert house.shown.installed[1] == house.shown.installed[0], "until then the one before is shown"


async def test_an_account_that_the_authority_has_forgotten_is_registered_again(house: House) -> None:
    async with house.process() as keeper:
        await house.shown.until(1)
        house.authority.accounts.clear()
        await keeper.renew(service_itself("certificate.renew"))
        await house.failed(1)
        await keeper.renew(service_itself("certificate.renew"))
        await house.shown.until(2)

    assert len(house.authority.accounts) == 1


async def test_what_the_authority_sends_for_another_key_is_not_shown(house: House) -> None:
    async with house.process() as keeper:
        first = await house.shown.until(1)
        house.authority.fail("certificate", Answer(200, text=first.chain))
        await keeper.renew(service_itself("certificate.renew"))
        record = await house.failed(1)

    assert record.last_error == "The certificate that the authority sent cannot be used: it is for another key"
    assert house.shown.installed == [first]


async def test_an_external_account_comes_from_its_file(house: House, tmp_path: Path) -> None:
    file = tmp_path / "eab"
    file.write_text("YSBrZXkgdGhhdCB0aGUgYXV0aG9yaXR5IGdhdmUgb3V0\n")
    house.authority.external["customer-1"] = b"a key that the authority gave out"
    settings = replace(SETTINGS, external_key_id="customer-1", external_key_file=file)

    async with house.process(settings):
        await house.shown.until(1)

    assert len(house.authority.accounts) == 1


async def test_no_key_lies_in_the_database_in_the_clear(house: House) -> None:
    async with house.process():
        issued = await house.shown.until(1)
    account = await house.database.fetchone("SELECT sealed_key FROM acme_accounts")
    kept = await house.database.fetchone("SELECT sealed_key FROM acme_certificates")

    assert issued.key not in kept["sealed_key"]
    assert b"PRIVATE KEY" not in account["sealed_key"] + kept["sealed_key"]
