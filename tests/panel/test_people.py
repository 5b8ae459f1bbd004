"""The panel's people: tokens in their names, roles, suspension, and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from svc.cli.description import describe
from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.operation import Presentation
from svc_actors.store import Database
from tests.support.identity import PASSWORD, Client
from tests.support.panel import PanelHarness, open_panel


@pytest.fixture
async def panel(panel_database: Database, tmp_path: Path) -> AsyncIterator[PanelHarness]:
    async with open_panel(panel_database, tmp_path) as opened:
        yield opened


async def made(client: Client, path: str, body: Any) -> dict[str, Any]:
    answer = await client.post(path, body)
    assert answer.status_code == 201, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_an_administrator_makes_a_token_that_acts_as_a_customer(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")

    token = await made(root, f"/users/{ada}/tokens", {"name": "deploys", "scopes": ["deploy", "read"], "days": 0})

    hers = panel.program(token["token"])
    assert token["token"].startswith("svc_")
    assert (await hers.get("/me")).json()["email"] == "ada@example.com"
    assert (await hers.get("/me")).json()["scopes"] == ["deploy", "jobs", "read"]
    assert token["expires_at"] is None
    listed = (await root.get(f"/tokens?user={ada}")).json()["items"]
    assert [(each["name"], each["scopes"]) for each in listed] == [("deploys", ["deploy", "read"])]
    assert token["token"] not in str(await panel.audit())
    assert (await hers.post(f"/users/{ada}/tokens", {"name": "more"})).status_code == 403


async def test_a_token_without_scopes_has_its_owners_full_authority(panel: PanelHarness) -> None:
    ada = await panel.person("ada@example.com")
    root = await panel.administrator()

    token = await made(root, f"/users/{ada}/tokens", {"name": "everything", "days": 1})

    hers = panel.program(token["token"])
    assert token["scopes"] is None
    assert (await hers.get("/me")).json()["scopes"] == sorted(REALM.scopes.names)
    assert (await hers.post("/tokens", {"name": "child"})).status_code == 201
    assert (await hers.get("/users")).status_code == 403
    assert (await hers.get("/tokens")).json()["items"][0]["scopes"] is None


@pytest.mark.parametrize(
    "wrong",
    [{"scopes": []}, {"scopes": [""]}, {"scopes": ["made_up"]}, {"days": -1}, {"days": 3651}, {"days": 1.5}],
    ids=str,
)
async def test_scopes_and_days_that_mean_nothing_are_invalid(panel: PanelHarness, wrong: dict[str, Any]) -> None:
    ada = await panel.person("ada@example.com")
    root = await panel.administrator()

    answers = [await root.post(path, {"name": "t"} | wrong) for path in ("/tokens", f"/users/{ada}/tokens")]

    assert [answer.json()["error"]["code"] for answer in answers] == ["invalid", "invalid"]


@pytest.mark.parametrize(
    ("of", "asked", "status"),
    [
        (("admin",), None, 201),
        (("admin",), ["sites"], 201),
        (("admin",), ["admin"], 201),
        (("admin",), ["jobs", "read"], 201),
    ],
)
async def test_a_token_makes_tokens_within_its_own_scopes(
    panel: PanelHarness, of: tuple[str, ...], asked: list[str] | None, status: int
) -> None:
    maker = await panel.customer(scopes=of)

    answer = await maker.post("/tokens", {"name": "child", **({} if asked is None else {"scopes": asked})})

    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("asked", [None, ["read"], ["sites", "admin"]], ids=str)
async def test_a_narrow_token_makes_none(panel: PanelHarness, asked: list[str] | None) -> None:
    maker = await panel.customer(scopes=("sites",))

    answer = await maker.post("/tokens", {"name": "child", **({} if asked is None else {"scopes": asked})})

    assert answer.json()["error"]["code"] == "forbidden"
    assert "scope admin" in answer.json()["error"]["message"]


def test_scopes_hold_those_that_they_contain() -> None:
    closed = REALM.scopes.closed

    assert closed(["admin"]) == frozenset(REALM.scopes.names)
    assert closed(["read"]) == {"read", "jobs"}
    assert closed(["sites"]) == {"sites"}
    assert closed(["jobs"]) == {"jobs"}
    assert closed(["made up"]) == frozenset()


async def test_suspension_ends_sessions_and_refuses_tokens_until_it_is_lifted(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    token = panel.program(await panel.token(ada))
    browser = panel.browser()
    await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})

    suspended = await root.post(f"/admin/users/{ada}/suspend", {"reason": "not paid"})

    assert suspended.json()["status"] == "suspended"
    assert [(await client.get("/me")).status_code for client in (browser, token)] == [401, 401]
    again = await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})
    assert "not paid" in again.json()["error"]["message"]
    restored = await root.post(f"/admin/users/{ada}/restore")
    assert restored.json()["tokens"] == 1
    assert [(await client.get("/me")).status_code for client in (browser, token)] == [401, 200]


async def test_there_are_administrators_and_customers_and_no_other_role(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = (await made(root, "/users", {"email": "ada@example.com", "name": "Ada"}))["id"]

    staff = [
        await root.post("/users", {"email": "bob@example.com", "name": "Bob", "role": "staff"}),
        await root.call("PATCH", f"/users/{ada}", {"role": "staff"}),
        await root.call("PATCH", f"/admin/users/{ada}", {"role": "staff"}),
    ]

    assert [answer.status_code for answer in staff] == [400, 400, 400]
    assert staff[0].json()["error"]["message"] == "role: there is no staff here; there are administrator, customer"
    promoted = await root.call("PATCH", f"/admin/users/{ada}", {"role": "administrator"})
    assert promoted.json()["role"] == "administrator"
    shown = (await root.get(f"/admin/users/{ada}")).json()
    assert (shown["site_count"], shown["token_count"]) == (0, 0)


async def test_what_is_administrators_alone_says_so_without_staff(panel: PanelHarness) -> None:
    ada = await panel.customer()

    refused = [
        await ada.get(path) for path in ("/users", "/admin/users", "/audit", "/settings", "/mails", "/alerts/mail")
    ]

    assert {answer.json()["error"]["message"] for answer in refused} == {"This is for administrators only."}


async def test_the_audit_log_is_filtered_and_shows_the_address(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    await root.post(f"/admin/users/{ada}/suspend", {"reason": "not paid"})
    await root.post(f"/admin/users/{ada}/restore")
    await (await panel.customer("eve@example.com")).post("/users", {"email": "x@example.com", "name": "X"})

    everything = (await root.get("/audit")).json()["items"]
    suspensions = (await root.get(f"/audit?operation=person.suspend&target_id={ada}")).json()
    refused = (await root.get("/audit?outcome=denied&actor=eve@example.com")).json()["items"]
    future = (await root.get("/audit?since=2100-01-01T00:00:00Z")).json()["items"]

    assert [each["operation"] for each in everything] == ["user.create", "person.restore", "person.suspend"]
    assert [(each["actor"], each["address"]) for each in suspensions["items"]] == [("root@example.com", "192.0.2.2")]
    assert suspensions["total"] == 1
    assert [(each["operation"], each["error_code"]) for each in refused] == [("user.create", "forbidden")]
    assert future == []


async def test_every_answer_is_json_also_where_there_is_nothing_to_say(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    token = await made(root, "/tokens", {"name": "t"})

    nothing = [
        await root.call("DELETE", f"/tokens/{token['id']}"),
        await root.post(f"/admin/users/{ada}/password", {"password": "Another-Horse-42"}),
    ]

    assert [(answer.status_code, answer.content) for answer in nothing] == [(200, b"{}"), (200, b"{}")]
    assert {answer.headers["content-type"] for answer in nothing} == {"application/json"}
    assert {each.presentation for each in panel_registry()} == {Presentation.JSON}
    assert not any(each.upload for each in panel_registry())
    assert {entry.status for entry in panel_registry().entries()} == {200, 201}


def test_the_command_of_the_specification_makes_a_token() -> None:
    commands = {each.words: each for each in describe(panel_registry()).operations}

    command = commands["user", "token"]
    taken = {each.name: (each.required, each.listed, each.default) for each in command.parameters}

    assert command.positional == ("id",)
    assert command.list_path == "/users"
    assert taken["name"] == (True, False, None)
    assert taken["days"] == (False, False, "365")
    assert taken["scopes"] == (False, True, None)
