"""Support sessions, rule by rule (specification, Authentication, 6)."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from svc.controller.catalogue import controller_registry
from svc.controller.realm import REALM
from svc.identity.authenticate import Authentication
from svc.identity.events import views_of
from svc.registry.operation import Method, Presentation
from tests.support.harness import Client, said
from tests.support.identity import IdentityHarness

REFUSAL = "a support session can look, not act"
ALLOWED = {("POST", "/auth/logout"), ("POST", "/impersonation/end"), ("POST", "/vms/{id}/start")}
SOMETHING = str(UUID(int=1))


async def inside(world: IdentityHarness) -> tuple[Client, UUID, UUID]:
    """An administrator's browser inside a customer's account, and both people's ids."""
    operator = await world.person("root@example.org", "administrator")
    customer = await world.person("ada@example.org")
    browser = await world.signed_in("root@example.org")
    answer = await browser.post(f"/admin/users/{customer}/impersonate", {"reason": "ticket 12"})
    assert answer.status_code == 200, answer.text
    return browser, operator, customer


async def test_the_cookie_becomes_the_customers_and_says_who_is_behind_it(world: IdentityHarness) -> None:
    browser, _, customer = await inside(world)
    me = (await browser.get("/me")).json()
    assert (me["id"], me["role"]) == (str(customer), "customer")
    assert (me["impersonation"]["operator"], me["impersonation"]["reason"]) == ("root@example.org", "ticket 12")
    assert (await browser.get("/admin/users")).status_code == 403


async def test_every_route_is_read_only_but_three(world: IdentityHarness) -> None:
    browser, _, _ = await inside(world)
    for operation in world.registry:
        method, path = operation.route.method, operation.route.path
        if operation.presentation is Presentation.EVENT_STREAM or (method.value, path) in ALLOWED:
            continue
        answer = await browser.call(method.value, path.replace("{id}", SOMETHING).replace("{user_id}", SOMETHING))
        if method is Method.GET and not operation.mutates:
            assert REFUSAL not in answer.text, path
        else:
            assert answer.status_code == 403, path
            assert said(answer) == {"code": "forbidden", "message": REFUSAL, "details": {}}, path


def test_exactly_the_three_routes_of_the_specification_are_open_to_it() -> None:
    allowed = {
        (operation.route.method.value, operation.route.path)
        for operation in controller_registry()
        if operation.in_support_session
    }
    assert allowed == ALLOWED


async def test_ending_it_returns_the_operator_to_their_own_session_with_new_cookies_each_time(
    world: IdentityHarness,
) -> None:
    await world.person("root@example.org", "administrator")
    customer = await world.person("ada@example.org")
    browser = await world.signed_in("root@example.org")
    cookies = [browser.cookie]
    await browser.post(f"/admin/users/{customer}/impersonate", {"reason": "r"})
    cookies.append(browser.cookie)
    ended = await browser.post("/impersonation/end")
    cookies.append(browser.cookie)
    assert ended.status_code == 200
    assert (await browser.get("/me")).json()["email"] == "root@example.org"
    assert len(set(cookies)) == 3
    for old in cookies[:2]:
        again = await world.browser().call("GET", "/me", headers={"Cookie": f"svcvm_session={old}"})
        assert again.status_code == 401
    assert (await browser.post("/impersonation/end")).json()["error"]["code"] == "conflict"


async def test_the_operators_session_ends_no_later_for_the_visit(world: IdentityHarness) -> None:
    await world.person("root@example.org", "administrator")
    customer = await world.person("ada@example.org")
    browser = await world.signed_in("root@example.org")
    await world.database.execute("UPDATE sessions SET expires_at = now() + interval '2 hours'")
    was = await world.database.fetchval("SELECT expires_at FROM sessions")
    await browser.post(f"/admin/users/{customer}/impersonate", {"reason": "r"})
    await browser.post("/impersonation/end")
    assert await world.database.fetchval("SELECT expires_at FROM sessions") == was


async def test_it_is_over_after_thirty_minutes_on_the_request_that_finds_out(world: IdentityHarness) -> None:
    browser, _, _ = await inside(world)
    cookie = browser.cookie
    lasts = await world.database.fetchval("SELECT expires_at - started_at FROM impersonations")
    assert lasts.total_seconds() == 1800
    move = "UPDATE {} SET expires_at = expires_at - interval '{}'"
    await world.database.execute(move.format("impersonations", "29 minutes 50 seconds"))
    assert (await browser.get("/me")).status_code == 200
    await world.database.execute(move.format("impersonations", "11 seconds"))
    assert (await browser.get("/me")).status_code == 401
    assert await world.database.fetchval("SELECT ended_at IS NOT NULL FROM impersonations")
    late = await world.browser().call("POST", "/impersonation/end", {}, headers={"Cookie": f"svcvm_session={cookie}"})
    assert late.status_code == 401


@pytest.mark.parametrize("role", ["administrator", "staff"])
async def test_never_in_the_account_of_an_administrator_or_a_staff_member(world: IdentityHarness, role: str) -> None:
    await world.person("root@example.org", "administrator")
    other = await world.person("other@example.org", role)
    browser = await world.signed_in("root@example.org")
    answer = await browser.post(f"/admin/users/{other}/impersonate", {"reason": "r"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_never_of_oneself_nested_from_a_token_or_by_somebody_else(world: IdentityHarness) -> None:
    root = await world.person("root@example.org", "administrator")
    await world.person("staff@example.org", "staff")
    customer = await world.person("ada@example.org")
    path, reason = f"/admin/users/{customer}/impersonate", {"reason": "r"}
    browser = await world.signed_in("root@example.org")
    assert (await browser.post(f"/admin/users/{root}/impersonate", reason)).status_code == 403
    assert (await world.program(await world.token(root)).post(path, reason)).status_code == 403
    assert (await (await world.signed_in("staff@example.org")).post(path, reason)).status_code == 403
    assert (await browser.post(path, {"reason": " "})).status_code == 400
    assert (await browser.post(path, reason)).status_code == 200
    nested = await browser.post(path, reason)
    assert nested.json()["error"]["message"] == REFUSAL


ENDINGS = [
    "UPDATE users SET suspended_at = now(), suspension_reason = 'r' WHERE email = 'root@example.org'",
    "UPDATE users SET role = 'staff' WHERE email = 'root@example.org'",
    "UPDATE users SET role = 'staff' WHERE email = 'ada@example.org'",
]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_it_ends_when_either_side_is_no_longer_what_it_was(world: IdentityHarness, ending: str) -> None:
    browser, _, _ = await inside(world)
    await world.database.execute(ending)
    assert (await browser.get("/me")).status_code == 401


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stream_of_events_that_it_opened_ends_with_it(world: IdentityHarness, ending: str) -> None:
    browser, _, _ = await inside(world)
    principal = await Authentication(world.database, REALM).by_session(browser.cookie or "")
    assert await views_of(world.database, REALM, [principal]) != [None]

    await world.database.execute(ending)

    assert await views_of(world.database, REALM, [principal]) == [None]


@pytest.mark.parametrize("whose", ["operator", "customer"])
async def test_signing_either_person_out_ends_it(world: IdentityHarness, whose: str) -> None:
    browser, operator, customer = await inside(world)
    await world.person("second@example.org", "administrator")
    second = await world.signed_in("second@example.org")
    target = operator if whose == "operator" else customer
    assert (await second.post(f"/admin/users/{target}/sign-out")).json() == {"sessions": 1}
    assert (await browser.get("/me")).status_code == 401


async def test_the_audit_names_both_parties_and_the_customer_sees_it(world: IdentityHarness) -> None:
    browser, operator, customer = await inside(world)
    await browser.post("/tokens", {"name": "t", "scopes": ["read"]})
    await browser.post("/auth/logout")
    rows = [row for row in await world.audit() if row["via"] == "impersonation"]
    assert [row["operation"] for row in rows] == ["person.impersonate", "token.create", "session.logout"]
    for row in rows:
        assert row["actor"] == "root@example.org as ada@example.org"
        assert (row["actor_id"], row["impersonator_id"]) == (customer, operator)
        record = await world.database.fetchrow("SELECT * FROM impersonations WHERE id = $1", row["impersonation_id"])
        assert record is not None
        assert (record["operator_id"], record["customer_id"]) == (operator, customer)
    seen = (await (await world.signed_in("ada@example.org")).get("/activity")).json()["items"]
    assert {"root@example.org as ada@example.org"} <= {entry["actor"] for entry in seen}


async def test_an_administrator_reads_who_has_been_inside(world: IdentityHarness) -> None:
    browser, operator, customer = await inside(world)
    await browser.post("/impersonation/end")
    [record] = (await browser.get(f"/admin/users/{customer}/impersonations")).json()["items"]
    assert (record["operator"], record["operator_id"], record["reason"]) == (
        "root@example.org",
        str(operator),
        "ticket 12",
    )
    assert record["ended_at"] is not None


async def test_the_customer_reads_of_its_beginning_and_not_where_the_operator_was(world: IdentityHarness) -> None:
    browser, operator, customer = await inside(world)
    [row] = [row for row in await world.audit() if row["operation"] == "person.impersonate"]
    assert (row["actor"], row["via"]) == ("root@example.org as ada@example.org", "impersonation")
    assert (row["actor_id"], row["impersonator_id"], row["address"]) == (customer, operator, "192.0.2.1")
    assert row["impersonation_id"] is not None
    await browser.post("/impersonation/end")
    ada = await world.signed_in("ada@example.org", address="192.0.2.9")

    entries = (await ada.get("/activity")).json()["items"]

    assert [(entry["operation"], entry["via"], entry["address"]) for entry in entries] == [
        ("session.login", "session", "192.0.2.9"),
        ("impersonation.end", "impersonation", None),
        ("person.impersonate", "impersonation", None),
    ]


async def test_one_at_a_time_of_each_operator_whatever_the_browser(world: IdentityHarness) -> None:
    first, _, customer = await inside(world)
    second = await world.signed_in("root@example.org")
    path = f"/admin/users/{customer}/impersonate"

    refused = await second.post(path, {"reason": "r"})
    await first.post("/impersonation/end")
    begun = await second.post(path, {"reason": "r"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert begun.status_code == 200
    assert await world.database.fetchval("SELECT count(*) FROM impersonations") == 2


async def test_one_that_was_lost_with_its_browser_bars_the_next_no_longer_than_it_lasts(world: IdentityHarness) -> None:
    _, _, customer = await inside(world)
    await world.database.execute("UPDATE impersonations SET expires_at = now()")
    second = await world.signed_in("root@example.org")

    begun = await second.post(f"/admin/users/{customer}/impersonate", {"reason": "r"})

    assert begun.status_code == 200


async def test_two_begun_at_once_from_two_browsers_are_one(world: IdentityHarness) -> None:
    await world.person("root@example.org", "administrator")
    customers = [await world.person(f"{name}@example.org") for name in ("ada", "eve")]
    browsers = [await world.signed_in("root@example.org") for _ in customers]
    statuses: list[int] = []

    async def begin(browser: Client, customer: UUID) -> None:
        answer = await browser.post(f"/admin/users/{customer}/impersonate", {"reason": "r"})
        statuses.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for browser, customer in zip(browsers, customers, strict=True):
            nursery.start_soon(begin, browser, customer)

    assert sorted(statuses) == [200, 409]


async def test_who_has_been_inside_an_account_is_a_page(world: IdentityHarness) -> None:
    browser, _, customer = await inside(world)
    await browser.post("/impersonation/end")
    await browser.post(f"/admin/users/{customer}/impersonate", {"reason": "again"})
    await browser.post("/impersonation/end")

    page = (await browser.get(f"/admin/users/{customer}/impersonations?page_size=1")).json()

    assert (page["total"], page["pages"], [record["reason"] for record in page["items"]]) == (2, 2, ["again"])
