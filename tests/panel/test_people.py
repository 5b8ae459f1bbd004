"""The panel's people: tokens in their names, roles, suspension, and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic import TypeAdapter

from svc.cli.description import describe
from svc.panel.accounts.deletion import AccountDeletion
from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.operation import Presentation
from svc_actors.panel.jobs import INTERRUPTED, JobRun, JobStatus
from svc_actors.store import Database
from svc_common.errors import conflict
from tests.panel.jobs.work import ended
from tests.support.authenticator import Authenticator, code_given
from tests.support.harness import PASSWORD, Client
from tests.support.identity import MAIL
from tests.support.panel import PanelHarness, open_panel


@pytest.fixture
async def panel(panel_database: Database, tmp_path: Path) -> AsyncIterator[PanelHarness]:
    async with open_panel(panel_database, tmp_path, loops=["jobs"]) as opened:
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
        await root.call("PATCH", f"/admin/users/{ada}", {"role": "member"}),
    ]

    assert [answer.status_code for answer in staff] == [400, 400, 400, 400]
    assert staff[0].json()["error"]["message"] == "role: must be one of administrator, customer"
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


async def test_the_audit_is_exported_in_parts_that_neither_repeat_nor_skip(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    await root.post(f"/admin/users/{ada}/suspend", {"reason": "not paid"})
    await root.post(f"/admin/users/{ada}/restore")
    await root.post(f"/admin/users/{ada}/suspend", {"reason": "again"})

    first = (await root.get("/audit/export?limit=2")).json()
    await root.post(f"/admin/users/{ada}/restore")
    rest = (await root.get(f"/audit/export?limit=3&after={first['next_after']}")).json()
    chosen = (await root.get("/audit/export?operation=person.suspend&limit=1")).json()

    told = [each["operation"] for each in first["entries"] + rest["entries"]]
    assert told == ["person.suspend", "person.restore", "person.suspend", "person.restore"]
    assert rest["next_after"] is None
    assert [each["operation"] for each in chosen["entries"]] == ["person.suspend"]
    customer = await panel.customer("eve@example.com")
    assert (await customer.get("/audit/export")).status_code == 403


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


async def test_a_code_besides_the_password_works_as_in_the_other_service(
    panel: PanelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Authenticator.with_clock(monkeypatch)
    await panel.person("ada@example.com")
    browser = panel.browser()
    await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})
    codes = await phone.set_up(browser)

    asked = await panel.browser().post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})
    pending = asked.json()["pending"]
    wrong = await code_given(panel.browser(), pending, phone.wrong_code())
    right = await code_given(panel.browser(), pending, phone.code())
    disabled = await browser.post("/me/second-factor/disable", {"password": PASSWORD, "code": codes[0]})

    assert (asked.status_code, "set-cookie" in asked.headers) == (202, False)
    assert set(wrong.json()["error"]) == {"code", "message", "hint"}
    assert right.headers["set-cookie"].startswith("svc_session=")
    assert (disabled.status_code, disabled.json()) == (200, {})


async def test_the_panel_has_settings_of_its_own(panel: PanelHarness) -> None:
    root = await panel.administrator()

    first = (await root.get("/settings")).json()
    changed = await root.call("PATCH", "/settings", {"service_name": "Example Hosting", "keep_mail_days": 7})

    assert first["service_name"] == "Hosting"
    assert not {"keep_task_days", "keep_traffic_months"} & set(first)
    assert (changed.json()["service_name"], changed.json()["keep_mail_days"]) == ("Example Hosting", 7)
    assert (await root.call("PATCH", "/settings", {"keep_task_days": 7})).status_code == 400


async def test_somebody_who_forgot_their_password_is_mailed_a_link(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, mail=MAIL) as panel:
        await panel.person("ada@example.com")

        await panel.browser().post("/auth/forgot-password", {"email": "ada@example.com"})
        await panel.step("password asks")
        rows = await panel.database.fetch("SELECT kind, recipient FROM mails")

    assert [tuple(row) for row in rows] == [("password_reset", "ada@example.com")]


def test_every_text_of_a_request_has_a_shape_and_a_length() -> None:
    unbounded = [
        f"{operation.name}: {path}"
        for operation in panel_registry()
        for path, schema in texts(TypeAdapter(operation.request).json_schema())
        if not bounded(schema)
    ]

    assert unbounded == []


def bounded(schema: dict[str, Any]) -> bool:
    if {"enum", "const"} & set(schema) or schema.get("format") in ("uuid", "date-time", "ipv4", "ipv6"):
        return True
    # A secret (a private key) has no shape in the document; what reads it says what it must be.
    return "maxLength" in schema and ("pattern" in schema or schema.get("writeOnly") is True)


def texts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The texts of a JSON schema, by their paths; definitions are looked at by themselves."""
    if schema.get("type") == "string":
        yield path, schema
    parts = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    for part in parts:
        yield from texts(part, path)
    for name, part in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        yield from texts(part, f"{path}/{name}")


async def test_an_account_that_owns_nothing_is_deleted_by_a_job_and_leaves_only_the_audit(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    hers = panel.program(await panel.token(ada))
    browser = panel.browser()
    await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})

    ordered = await root.call("DELETE", f"/users/{ada}")
    at_once = [(await client.get("/me")).status_code for client in (hers, browser)]
    job = await ended(panel.services.jobs, panel.database, ordered.json()["id"])

    assert (ordered.status_code, ordered.json()["status"]) == (200, "queued")
    assert at_once == [401, 401]
    assert job.status.value == "succeeded"
    assert (await root.get(f"/admin/users/{ada}")).status_code == 404
    for table in ("users", "sessions", "api_tokens", "impersonations"):
        assert str(ada) not in str([dict(row) for row in await panel.database.fetch(f"SELECT * FROM {table}")])
    assert "user.delete" in [row["operation"] for row in await panel.audit() if row["target_id"] == str(ada)]


async def test_somebody_who_was_in_a_support_session_and_saw_alerts_is_deleted_as_well(panel: PanelHarness) -> None:
    root = await panel.administrator()
    bob, ada = await panel.person("bob@example.com", "administrator"), await panel.person("ada@example.com")
    browser = panel.browser()
    await browser.post("/auth/login", {"email": "bob@example.com", "password": PASSWORD})
    await panel.database.execute(
        """
        INSERT INTO alerts (key, severity, message, acknowledged_at, acknowledged_by)
        VALUES ('a', 'warning', 'a', now(), $1)
        """,
        bob,
    )
    assert (await browser.post(f"/admin/users/{ada}/impersonate", {"reason": "to look"})).status_code == 200

    ordered = await root.call("DELETE", f"/users/{bob}")

    job = await ended(panel.services.jobs, panel.database, ordered.json()["id"])
    assert job.status.value == "succeeded", job.error
    assert (await browser.get("/me")).status_code == 401
    assert await panel.database.fetchval("SELECT acknowledged_at IS NOT NULL FROM alerts WHERE key = 'a'")


async def test_a_deletion_of_an_account_that_a_restart_interrupted_goes_on(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = trio.Event()

    async def never(work: AccountDeletion, run: JobRun) -> None:
        begun.set()
        await trio.sleep_forever()

    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    with monkeypatch.context() as held:
        held.setattr(AccountDeletion, "remove_account", never)
        async with open_panel(panel_database, tmp_path, loops=["jobs"]) as panel:
            root = await panel.administrator()
            ada = await panel.person("ada@example.com")
            first = (await root.call("DELETE", f"/users/{ada}")).json()
            await begun.wait()
    async with open_panel(panel_database, tmp_path, loops=["jobs"]) as panel:
        interrupted = await ended(panel.services.jobs, panel.database, first["id"])
        further = await panel.database.fetchval("SELECT max(id) FROM jobs WHERE kind = 'user.delete'")
        job = await ended(panel.services.jobs, panel.database, further)
        left = await panel.database.fetchval("SELECT count(*) FROM users WHERE id = $1", ada)

    assert interrupted.error == INTERRUPTED
    assert further > first["id"]
    assert job.status is JobStatus.SUCCEEDED
    assert left == 0


@pytest.mark.parametrize("suspended_for", [None, "not paid"])
async def test_an_account_whose_deletion_fails_is_as_it_was_before(
    panel: PanelHarness, monkeypatch: pytest.MonkeyPatch, suspended_for: str | None
) -> None:
    async def fail(work: AccountDeletion, run: JobRun) -> None:
        raise conflict("something is in the way")

    monkeypatch.setattr(AccountDeletion, "remove_account", fail)
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    if suspended_for is not None:
        await root.post(f"/admin/users/{ada}/suspend", {"reason": suspended_for})

    ordered = await root.call("DELETE", f"/users/{ada}")
    job = await ended(panel.services.jobs, panel.database, ordered.json()["id"])

    shown = (await root.get(f"/admin/users/{ada}")).json()
    assert job.status is JobStatus.FAILED
    assert shown["status"] == ("active" if suspended_for is None else "suspended")
    assert shown["suspension_reason"] == suspended_for


async def test_an_account_whose_deletion_is_cancelled_is_restored(
    panel: PanelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(work: AccountDeletion, run: JobRun) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(AccountDeletion, "remove_account", never)
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    hers = panel.program(await panel.token(ada))
    ordered = await root.call("DELETE", f"/users/{ada}")

    cancelled = await root.post(f"/jobs/{ordered.json()['id']}/cancel")
    job = await ended(panel.services.jobs, panel.database, ordered.json()["id"])

    assert cancelled.status_code == 200, cancelled.text
    assert job.status is JobStatus.CANCELLED
    assert (await hers.get("/me")).status_code == 200
    rows = [row for row in await panel.audit() if row["operation"] == "person.restore"]
    assert [(row["actor"], row["target_id"]) for row in rows] == [("system", str(ada))]


async def test_an_account_that_owns_sites_is_not_deleted(panel: PanelHarness) -> None:
    root = await panel.administrator()
    ada = await panel.person("ada@example.com")
    hers = panel.program(await panel.token(ada))
    async with panel.database.transaction() as tx:
        site = await tx.fetchval(
            "INSERT INTO sites (owner_id, domain, type) VALUES ($1, 'example.com', 'static') RETURNING id", ada
        )
        await tx.execute(
            "INSERT INTO site_domains (site_id, name, registrable) VALUES ($1, 'example.com', 'example.com')", site
        )

    refused = await root.call("DELETE", f"/users/{ada}")

    assert refused.json()["error"]["code"] == "conflict"
    assert refused.json()["error"]["message"] == "This account owns example.com; it was not deleted."
    assert (await hers.get("/me")).status_code == 200
    assert (await root.get("/jobs")).json()["total"] == 0


async def test_nobody_deletes_themselves_and_customers_delete_nobody(panel: PanelHarness) -> None:
    root_id = await panel.person("root@example.com", "administrator")
    root = panel.program(await panel.token(root_id))
    ada = await panel.customer()

    refused = [await root.call("DELETE", f"/users/{root_id}"), await ada.call("DELETE", f"/users/{root_id}")]

    assert [answer.json()["error"]["code"] for answer in refused] == ["conflict", "forbidden"]
    assert (await root.get("/me")).status_code == 200
