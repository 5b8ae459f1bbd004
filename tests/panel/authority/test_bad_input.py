"""Texts that nobody means, in each place of each request, over the core's own socket: refused in words, or taken as the
text that they are, and never a defect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import quote, urlencode

import pytest

from svc.registry.operation import Method
from svc_actors.store import Database
from tests.panel.authority.test_every_operation import EVERY, FIELDS, OF_CUSTOMERS, AnOperation, placeholders
from tests.support.bad_input import TEXTS, bad_bodies
from tests.support.panel import PanelHarness
from tests.support.panel_caller import Answered, Asked, carried
from tests.support.panel_core import listening_core
from tests.support.panel_tenant import Tenant, records_of, tenant
from tests.support.site_files import site_folder

DEFECT = "The service failed internally"
REFUSALS = {400: "invalid", 401: "unauthenticated", 403: "forbidden", 404: "not_found", 409: "conflict"}
REFUSALS |= {405: "invalid", 413: "invalid", 429: "rate_limited"}
OTHERS = [operation for operation in EVERY if operation not in OF_CUSTOMERS]
"""Administrators' and what is open to all."""


@pytest.fixture
async def panel(panel_database: Database) -> AsyncIterator[PanelHarness]:
    async with listening_core(panel_database) as panel:
        yield panel


def with_texts(operation: AnOperation, of: Tenant, token: str, text: str) -> Iterator[tuple[str, Asked]]:
    """Requests about what is of `of`, each with `text` in one place of the body or of the query."""
    path = operation.route.path
    for placeholder, word in placeholders(operation):
        path = path.replace(placeholder, of.id_of(word), 1)
    for place, body in bad_bodies(
        operation, lambda field: of.ids.get(FIELDS.get(field, f"{field.removesuffix('_id')}s")), text
    ):
        if operation.route.method is Method.GET:
            # Half of a pair cannot be said in UTF-8: it is sent as the bytes that it would be.
            query = urlencode({name: str(value).encode("utf-8", "surrogatepass") for name, value in body.items()})
            yield place, Asked("GET", f"{path}?{query[:30_000]}", None, token)
        else:
            yield place, Asked(operation.route.method.value, path, body, token)


def with_ids(operation: AnOperation, of: Tenant, token: str, text: str) -> Iterator[tuple[str, Asked]]:
    """Requests with `text` in the place of one id of the path."""
    for wrong, _ in placeholders(operation):
        path = operation.route.path
        for placeholder, word in placeholders(operation):
            said = quote(text[:2000].encode("utf-8", "surrogatepass"), safe="")
            path = path.replace(placeholder, said if placeholder == wrong else of.id_of(word), 1)
        body: dict[str, str] | None = None if operation.route.method is Method.GET else {}
        yield wrong, Asked(operation.route.method.value, path, body, token)


async def unfit(panel: PanelHarness, asked: Sequence[tuple[str, Asked]]) -> dict[str, str]:
    """The answers that are neither a success nor a refusal in the specification's words."""

    def fits(answer: Answered) -> bool:
        if answer.status < 300:
            return True
        return REFUSALS.get(answer.status) == answer.error["code"] and DEFECT not in answer.text

    answers = await carried(panel, [each for _, each in asked])
    return {
        name: f"{answer.status} {answer.text[:300]}"
        for (name, _), answer in zip(asked, answers, strict=True)
        if not fits(answer)
    }


@pytest.mark.parametrize("kind", TEXTS)
async def test_no_text_of_a_customer_is_a_defect_or_changes_anything_of_another(panel: PanelHarness, kind: str) -> None:
    hostile, victim = await tenant(panel, "hostile"), await tenant(panel, "victim")
    for each in (hostile, victim):
        number = await panel.database.fetchval("SELECT number FROM sites WHERE id::text = $1", each.ids["sites"])
        site_folder(panel.services.config.folders.sites, number)
    token = await panel.token(hostile.id)
    before = await records_of(panel.database, victim)
    asked = [
        (f"{operation.name} {place}", request)
        for operation in OF_CUSTOMERS
        for place, request in [
            *with_texts(operation, hostile, token, TEXTS[kind]),
            *with_ids(operation, hostile, token, TEXTS[kind]),
        ]
    ]

    found = await unfit(panel, asked)

    assert len(asked) > 200
    assert found == {}
    assert await records_of(panel.database, victim) == before


@pytest.mark.parametrize("kind", ["line breaks", "NUL", "lone surrogate", "parents", "shell"])
async def test_no_text_of_an_administrator_or_a_stranger_is_a_defect(panel: PanelHarness, kind: str) -> None:
    about = await tenant(panel, "about")
    token = await panel.token(await panel.person("root@example.com", "administrator"))
    asked = [
        (f"{operation.name} {place}", request)
        for operation in OTHERS
        for place, request in [
            *with_texts(operation, about, token, TEXTS[kind]),
            *with_ids(operation, about, token, TEXTS[kind]),
        ]
    ]

    found = await unfit(panel, asked)

    assert len(asked) > 100
    assert found == {}
