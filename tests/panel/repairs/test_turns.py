"""Who asks for diagnoses again and again costs other customers nothing: turns of a customer, and shared looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from svc_actors.panel.repairs import Diagnosis, Finding, Repair
from svc_actors.panel.repairs import diagnosis as diagnosis_module
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus, SiteType
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.launcher import Limits

ADA, BOB = uuid4(), uuid4()


def site_of(owner: UUID, domain: str) -> SiteRow:
    return SiteRow(
        id=uuid4(),
        number=1001,
        owner_id=owner,
        domain=domain,
        type=SiteType.STATIC,
        status=SiteStatus.ACTIVE,
        reason=None,
        suspended_by=None,
        proxy_target=None,
        proxy_addresses=(),
        force_https=False,
        fallback_page=None,
        cache_assets=False,
        utf8_pages=False,
        wanted=1,
        served=1,
        php={},
        limits=Limits(),
    )


@dataclass
class Held:
    """A part of sites whose looks last until they are let go."""

    began: list[SiteRow] = field(default_factory=list)
    _under_way: dict[str, trio.Event] = field(default_factory=dict)

    async def look(self, site: SiteRow) -> list[Finding]:
        self.began.append(site)
        self._under_way[site.domain] = trio.Event()
        await self._under_way[site.domain].wait()
        return []

    async def mend(self, site: SiteRow) -> None: ...

    async def let_go(self, domain: str) -> None:
        self._under_way[domain].set()
        await wait_all_tasks_blocked()

    @property
    def domains(self) -> list[str]:
        return [site.domain for site in self.began]


class Well:
    async def look(self, site: SiteRow) -> list[Finding]:
        return []

    async def mend(self, site: SiteRow) -> None: ...


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(diagnosis_module, "LOOK_SECONDS", 1000.0)
    return Held()


@pytest.fixture
def diagnosis(held: Held) -> Diagnosis:
    return Diagnosis({repair: held if repair is Repair.RUNTIME else Well() for repair in Repair})


@pytest.fixture
async def asking(diagnosis: Diagnosis) -> AsyncIterator[Asking]:
    async with trio.open_nursery() as nursery:
        yield Asking(diagnosis, nursery)
        nursery.cancel_scope.cancel()


@dataclass
class Asking:
    diagnosis: Diagnosis
    nursery: trio.Nursery
    answered: list[str] = field(default_factory=list)

    async def ask(self, site: SiteRow, operator: str | None = None) -> trio.CancelScope:
        """Somebody asks, and waits; cancelled, he goes."""
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await self.diagnosis.of(site, operator)
                self.answered.append(site.domain)

        self.nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        return scope


async def test_of_one_customer_one_site_is_looked_at_at_a_time(held: Held, asking: Asking) -> None:
    for site in (site_of(ADA, "a.example"), site_of(ADA, "b.example"), site_of(BOB, "c.example")):
        await asking.ask(site)
    at_first = list(held.domains)
    await held.let_go("a.example")

    assert at_first == ["a.example", "c.example"]
    assert held.domains == ["a.example", "c.example", "b.example"]


async def test_an_operator_waits_for_no_turn_of_a_customers(held: Held, asking: Asking) -> None:
    for domain in ("a.example", "b.example"):
        await asking.ask(site_of(ADA, domain))
    shop = site_of(ADA, "shop.example")
    await asking.ask(shop)
    for operator in ("root", "root", "eve"):
        await asking.ask(shop, operator)

    assert held.domains == ["a.example", "shop.example", "shop.example"]


async def test_of_all_customers_four_are_looked_at_at_once(held: Held, asking: Asking) -> None:
    for number in range(6):
        await asking.ask(site_of(uuid4(), f"{number}.example"))
    at_first = len(held.began)
    await held.let_go("2.example")

    assert (at_first, len(held.began)) == (4, 5)


async def test_all_who_wait_for_a_site_share_its_next_look_and_none_that_began_before(
    held: Held, asking: Asking
) -> None:
    site = site_of(ADA, "a.example")
    for number in range(8):
        await asking.ask(replace(site, wanted=number))
    await held.let_go("a.example")
    after_the_first = list(asking.answered)
    await held.let_go("a.example")

    assert after_the_first == ["a.example"]
    assert asking.answered == ["a.example"] * 8
    assert [seen.wanted for seen in held.began] == [0, 7], "the record is the one that was read last"


async def test_who_leaves_takes_nobodys_answer_with_him(held: Held, asking: Asking) -> None:
    site = site_of(ADA, "a.example")
    await asking.ask(site)
    leaving = await asking.ask(site)
    await asking.ask(site)
    leaving.cancel()
    await wait_all_tasks_blocked()
    await held.let_go("a.example")
    await held.let_go("a.example")

    assert asking.answered == ["a.example"] * 2


async def test_a_turn_that_does_not_come_is_refused(
    held: Held, diagnosis: Diagnosis, autojump_clock: MockClock
) -> None:
    site, refused = site_of(ADA, "b.example"), []

    async def ask() -> None:
        with pytest.raises(ServiceError, match=r"b\.example was not diagnosed") as error:
            await diagnosis.of(site)
        refused.append((error.value.code, trio.current_time() - began))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(diagnosis.of, site_of(ADA, "a.example"))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        async with trio.open_nursery() as both:
            both.start_soon(ask)
            both.start_soon(ask)
        nursery.cancel_scope.cancel()

    assert [code for code, _ in refused] == [ErrorCode.RATE_LIMITED] * 2
    assert [seconds for _, seconds in refused] == pytest.approx([10.0] * 2)
    assert held.domains == ["a.example"]


async def test_the_look_itself_takes_nothing_of_the_wait(held: Held, asking: Asking, autojump_clock: MockClock) -> None:
    """Who got his turn late gets his answer, and so does who waited with him."""
    site = site_of(ADA, "b.example")
    await asking.ask(site_of(ADA, "a.example"))
    await asking.ask(site)
    await asking.ask(site)
    await trio.sleep(9.0)
    await held.let_go("a.example")
    await trio.sleep(100.0)
    await held.let_go("b.example")

    assert asking.answered == ["a.example", "b.example", "b.example"]
