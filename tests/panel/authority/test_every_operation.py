"""Every operation of the panel, over the core's own socket, by whoever may not call it: made from the registry, so that
an operation that is added is held to the same.

The order of the refusals is the specification's: the credential, the scope, the role, the body, then whose it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest

from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.operation import Method, Operation
from svc.registry.principal import Access
from svc_actors.secrets import fingerprint
from svc_actors.store import Database
from tests.support.panel import PanelHarness
from tests.support.panel_caller import Answered, Asked, carried
from tests.support.panel_core import listening_core
from tests.support.panel_tenant import OBJECTS, Tenant, nobodys, records_of, tenant
from tests.support.request_bodies import request_body

AnOperation = Operation[Any, Any, Any]

EVERY: Sequence[AnOperation] = tuple(panel_registry())
SIGNED_IN = [operation for operation in EVERY if operation.access is not Access.PUBLIC]
OF_CUSTOMERS = [operation for operation in EVERY if operation.access is Access.SIGNED_IN]
OF_ADMINISTRATORS = [operation for operation in SIGNED_IN if operation.access is not Access.SIGNED_IN]
ABOUT_ONE = [operation for operation in OF_CUSTOMERS if "{" in operation.route.path]

FIELDS = {"site": "sites", "site_id": "sites"}
"""Fields of bodies and queries that hold an id, by the word of a path that comes before one."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "file.upload_chunk": {"data_base64": "QUFB"},
    "app.deploy": {"archive": "code.zip"},
    "import.chunk": {"data_base64": "QUFB"},
}
"""What a request says more than its model asks for, where a rule of its own wants it."""

_CODES = {400: "invalid", 401: "unauthenticated", 403: "forbidden", 404: "not_found", 409: "conflict"}
_CODES |= {429: "rate_limited", 503: "unavailable", 405: "invalid", 413: "invalid"}


@pytest.fixture
async def panel(panel_database: Database) -> AsyncIterator[PanelHarness]:
    async with listening_core(panel_database) as panel:
        yield panel


def placeholders(operation: AnOperation) -> list[tuple[str, str]]:
    """Each placeholder of the path with the word before it: ("{id}", "sites")."""
    parts = operation.route.path.split("/")
    return [(part, parts[position - 1]) for position, part in enumerate(parts) if part.startswith("{")]


def filled(operation: AnOperation, id_of: Callable[[str], str], *, about: Tenant, token: str | None = None) -> Asked:
    """A request that the model takes; `id_of` gives the path's ids by the word before each, the tenant the body's."""
    path = operation.route.path
    for placeholder, word in placeholders(operation):
        path = path.replace(placeholder, id_of(word), 1)
    values = request_body(operation, lambda field: about.ids.get(FIELDS.get(field, f"{field.removesuffix('_id')}s")))
    values |= EXAMPLES.get(operation.name, {})
    if operation.route.method is Method.GET:
        return Asked("GET", f"{path}?{urlencode(values)}" if values else path, None, token)
    return Asked(operation.route.method.value, path, values, token)


def wrong(operation: AnOperation, of: Tenant, token: str | None) -> Asked:
    """A request whose only fault is a field that no model has: it is looked at behind the credential, the scope and the
    role, and before anything is done."""
    path = operation.route.path
    for placeholder, word in placeholders(operation):
        path = path.replace(placeholder, of.id_of(word), 1)
    if operation.route.method is Method.GET:
        return Asked("GET", f"{path}?no_such_field=1", None, token)
    return Asked(operation.route.method.value, path, {"no_such_field": 1}, token)


async def answers(
    panel: PanelHarness, operations: Sequence[AnOperation], ask: Callable[[AnOperation], Asked]
) -> dict[str, Answered]:
    """By the operations' names; of each answer what holds for every one of the panel's is checked here."""
    asked = [ask(operation) for operation in operations]
    found = {operation.name: answer for operation, answer in zip(operations, await carried(panel, asked), strict=True)}
    for name, answer in found.items():
        assert answer.headers["content-type"].partition(";")[0] == "application/json", name
        assert answer.headers["cache-control"] == "no-store", name
        body = json.loads(answer.text)
        if answer.status >= 300:
            assert set(body) == {"error"}, name
            assert set(body["error"]) == {"code", "message", "hint"}, name
            assert body["error"]["code"] == _CODES[answer.status], name
            assert all(isinstance(text, str) for text in body["error"].values()), name
    return found


def unexpected(found: dict[str, Answered], fits: Callable[[str, Answered], bool]) -> dict[str, str]:
    return {name: f"{answer.status} {answer.text[:200]}" for name, answer in found.items() if not fits(name, answer)}


def asked_scope(operation: AnOperation) -> str:
    return REALM.scopes.narrowest(operation)


def foreign_scopes(operation: AnOperation) -> tuple[str, ...]:
    """Every scope that does not open the operation."""
    return tuple(name for name in REALM.scopes.names if not REALM.scopes.allows(frozenset({name}), operation))


def test_the_tenant_of_these_tests_has_one_of_everything_that_a_path_names() -> None:
    """Else an operation on it would be tried with nothing of anybody's."""
    named = {word for operation in EVERY for _, word in placeholders(operation)}

    assert named - {"sites"} == OBJECTS.keys()


async def test_without_a_credential_nothing_but_the_public_answers(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")

    found = await answers(panel, SIGNED_IN, lambda operation: wrong(operation, victim, None))

    assert unexpected(found, lambda name, answer: answer.status == 401) == {}


async def test_no_credential_that_is_worth_nothing_opens_anything(panel: PanelHarness) -> None:
    victim, suspended = await tenant(panel, "victim"), await tenant(panel, "suspended")
    of_suspended = await panel.token(suspended.id)
    await panel.database.execute(
        "UPDATE users SET suspended_at = now(), suspension_reason = 'late' WHERE id = $1", suspended.id
    )
    expired = await panel.token(victim.id)
    await panel.database.execute("UPDATE api_tokens SET expires_at = now() WHERE token_hash = $1", fingerprint(expired))
    without_prefix = (await panel.token(victim.id)).removeprefix("svc_")
    worthless = [of_suspended, expired, without_prefix, "svc_" + "a" * 43]

    found = await answers(
        panel, SIGNED_IN, lambda operation: wrong(operation, victim, worthless[SIGNED_IN.index(operation) % 4])
    )

    assert unexpected(found, lambda name, answer: answer.status == 401) == {}


async def test_a_token_that_only_reads_changes_nothing_and_reveals_nothing(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    token = await panel.token(victim.id, ("read",))

    found = await answers(panel, SIGNED_IN, lambda operation: wrong(operation, victim, token))

    def fits(name: str, answer: Answered) -> bool:
        operation = panel_registry()[name]
        if operation.mutates or operation.secret:
            # Also for administrators' operations: the scope comes before the role.
            return answer.status == 403 and f"scope {asked_scope(operation)}" in answer.error["message"]
        return answer.status == (400 if operation.access is Access.SIGNED_IN else 403)

    assert unexpected(found, fits) == {}


@pytest.mark.parametrize("role", ["customer", "administrator"])
async def test_the_scopes_of_other_areas_open_nothing_whatever_the_role(panel: PanelHarness, role: str) -> None:
    victim = await tenant(panel, "victim")
    caller = await panel.person("caller@example.com", role)
    tokens = {scopes: await panel.token(caller, scopes) for scopes in map(foreign_scopes, SIGNED_IN) if scopes}
    bounded = [operation for operation in SIGNED_IN if foreign_scopes(operation)]

    found = await answers(panel, bounded, lambda operation: wrong(operation, victim, tokens[foreign_scopes(operation)]))

    assert len(bounded) == len(SIGNED_IN)

    def fits(name: str, answer: Answered) -> bool:
        return answer.status == 403 and f"scope {asked_scope(panel_registry()[name])}" in answer.error["message"]

    assert unexpected(found, fits) == {}


async def test_a_customer_with_their_full_authority_is_no_administrator(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    caller = await panel.person("caller@example.com")
    token = await panel.token(caller, ("admin",))

    found = await answers(panel, OF_ADMINISTRATORS, lambda operation: wrong(operation, victim, token))

    assert unexpected(found, lambda name, answer: "administrators only" in answer.error["message"]) == {}


async def test_an_administrator_may_call_every_operation(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    token = await panel.token(await panel.person("root@example.com", "administrator"))

    found = await answers(panel, SIGNED_IN, lambda operation: wrong(operation, victim, token))

    assert unexpected(found, lambda name, answer: answer.status in (400, 404)) == {}
    assert unexpected(found, lambda name, answer: answer.status == 400 or "{" not in name) == {}


async def test_what_is_another_customers_is_as_absent_as_what_is_not_there(panel: PanelHarness) -> None:
    victim, hostile = await tenant(panel, "victim"), await tenant(panel, "hostile")
    token = await panel.token(hostile.id)
    before = await records_of(panel.database, victim)

    foreign = await answers(
        panel, ABOUT_ONE, lambda operation: filled(operation, victim.id_of, about=victim, token=token)
    )
    absent = await answers(panel, ABOUT_ONE, lambda operation: filled(operation, nobodys, about=victim, token=token))

    assert unexpected(foreign, lambda name, answer: answer.status == 404) == {}
    assert unexpected(foreign, lambda name, answer: answer.text == absent[name].text) == {}
    assert await records_of(panel.database, victim) == before


async def test_what_is_anothers_is_absent_below_a_site_of_ones_own(panel: PanelHarness) -> None:
    victim, hostile = await tenant(panel, "victim"), await tenant(panel, "hostile")
    token = await panel.token(hostile.id)
    before = await records_of(panel.database, victim)
    below = [operation for operation in ABOUT_ONE if len(placeholders(operation)) > 1]

    def own_site(word: str) -> str:
        return hostile.id_of(word) if word == "sites" else victim.id_of(word)

    found = await answers(panel, below, lambda operation: filled(operation, own_site, about=hostile, token=token))

    assert below
    assert unexpected(found, lambda name, answer: answer.status == 404) == {}
    assert await records_of(panel.database, victim) == before


async def test_no_answer_of_a_list_shows_anything_of_anothers(panel: PanelHarness) -> None:
    victim, hostile = await tenant(panel, "victim"), await tenant(panel, "hostile")
    token = await panel.token(hostile.id)
    lists = [operation for operation in OF_CUSTOMERS if operation.route.method is Method.GET]

    found = await answers(panel, lists, lambda operation: filled(operation, hostile.id_of, about=hostile, token=token))
    of_victims = await answers(
        panel, lists, lambda operation: filled(operation, hostile.id_of, about=victim, token=token)
    )

    shown = {name: victim.marks & _words(answer.text) for name, answer in [*found.items(), *of_victims.items()]}
    assert {name: marks for name, marks in shown.items() if marks} == {}
    assert {name for name, answer in found.items() if hostile.marks & _words(answer.text)} >= {"site.list", "job.list"}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w.@-]+", text))


async def test_every_refusal_leaves_one_row_under_the_operations_own_name(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    changing = [operation for operation in SIGNED_IN if operation.mutates or operation.secret]
    # So many refusals a minute of one person are written down; each of these has a third of them.
    people = [await panel.person(f"caller{number}@example.com") for number in range(3)]
    tokens = [await panel.token(person, ("jobs",)) for person in people]

    await answers(
        panel, changing, lambda operation: wrong(operation, victim, tokens[changing.index(operation) % len(tokens)])
    )

    rows = await panel.audit()
    assert sorted(row["operation"] for row in rows) == sorted(operation.name for operation in changing)
    assert {(row["outcome"], row["error_code"], row["address"]) for row in rows} == {
        ("denied", "forbidden", "192.0.2.7")
    }


async def test_every_change_leaves_one_row_whether_it_was_made_or_not(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    token = await panel.token(await panel.person("root@example.com", "administrator"))
    changing = sorted((operation for operation in SIGNED_IN if operation.mutates), key=_ends_something)

    found = await answers(panel, changing, lambda operation: filled(operation, victim.id_of, about=victim, token=token))

    rows = [row["operation"] for row in await panel.audit()]
    counted = {operation.name: rows.count(operation.name) for operation in changing}
    assert {name: (number, found[name].text) for name, number in counted.items() if number != 1} == {}
    assert sum(answer.status < 300 for answer in found.values()) > 20


def _ends_something(operation: AnOperation) -> bool:
    return operation.route.method is Method.DELETE or operation.name in ("session.logout", "person.suspend")
