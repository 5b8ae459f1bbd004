"""Every operation of the panel, over the core's own socket, by members of a customer's account: each role may what the
one table of roles says, of the account or the site that it is for, and nothing of anything else.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from svc.panel.accounts.member_roles import (
    MEMBER_ROLES,
    MemberRole,
    about_sites,
    beyond_role,
    roles_for,
    whole_accounts_only,
)
from svc.panel.catalogue import panel_registry
from svc.registry.operation import Method
from svc_actors.store import Database
from tests.panel.authority.test_every_operation import (
    ABOUT_ONE,
    OF_CUSTOMERS,
    AnOperation,
    answers,
    filled,
    unexpected,
)
from tests.support.panel import PanelHarness
from tests.support.panel_caller import Answered, Asked
from tests.support.panel_core import listening_core
from tests.support.panel_tenant import Tenant, nobodys, records_of, tenant

OF_PERSONS = ("token", "alert", "session", "second_factor", "impersonation", "user", "membership")
"""Areas of whoever calls: no account of others comes into them."""
OF_ACCOUNTS = ("account", "import", "member")
IN_THE_BODY = ("database.create", "database_user.create", "import.begin", "import.ssh", "member.invite", "site.create")
"""What names the site or the account elsewhere than in the path."""
NO_SITE = ("php.versions", "sftp.host_keys")
"""What is the same for everybody who is signed in."""


@pytest.fixture
async def panel(panel_database: Database) -> AsyncIterator[PanelHarness]:
    async with listening_core(panel_database) as panel:
        yield panel


def area(operation: AnOperation) -> str:
    return operation.name.partition(".")[0]


def bounded(operation: AnOperation) -> bool:
    """Whether a role decides about a call of this operation."""
    return area(operation) not in OF_PERSONS and (operation in ABOUT_ONE or operation.name in IN_THE_BODY)


BOUNDED = sorted(
    (operation for operation in OF_CUSTOMERS if bounded(operation)),
    # What ends something comes last, and of that what is beneath the site before the site.
    key=lambda operation: (
        operation.route.method is not Method.GET,
        operation.route.method is Method.DELETE or operation.name == "file.upload_finish",
        operation.name in ("database.delete", "database_user.delete"),
        operation.name == "site.delete",
    ),
)
LISTS = [operation for operation in OF_CUSTOMERS if operation.route.method is Method.GET and not bounded(operation)]


def about(operation: AnOperation, of: Tenant, token: str) -> Asked:
    """A call about what the tenant has."""
    asked = filled(operation, of.id_of, about=of, token=token)
    return replace(asked, body=asked.body | {"domain": "new.example"}) if operation.name == "site.create" else asked


async def member(panel: PanelHarness, account: UUID, role: MemberRole, site: str | None = None) -> str:
    """A token of somebody who is a member of the account, or of this one site of it."""
    person = await panel.person(f"{role}-{uuid4().hex[:8]}@example.com", "member")
    await panel.database.execute(
        """INSERT INTO account_members (account_id, user_id, site_id, role, invited_by, accepted_at)
           VALUES ($1, $2, $3, $4, 'the owner', now())""",
        account,
        person,
        None if site is None else UUID(site),
        role,
    )
    return await panel.token(person)


def refused(answer: Answered, operation: AnOperation) -> bool:
    """As one whose role does not allow it is, and told which does."""
    told = beyond_role(roles_for(operation), whole_account=whole_accounts_only(operation))
    return answer.status == 403 and answer.error["message"] == told.message and answer.error["hint"] == told.hint


def seen(answer: Answered) -> bool:
    """Whether what it was about was there for the caller, whatever came of it: a static site has no PHP, for one."""
    return answer.status not in (401, 404) or not answer.error["message"].startswith("There is no such")


def test_each_operation_is_bounded_by_a_role_or_is_not_about_sites_and_accounts() -> None:
    """Else a member's call of it would be tried by no test of these."""
    rest = {operation.name for operation in OF_CUSTOMERS if not bounded(operation)}

    lists = {operation.name for operation in LISTS}
    own = {name for name in rest if name.partition(".")[0] in OF_PERSONS}
    assert rest - lists - own == set()
    assert {operation.name for operation in OF_CUSTOMERS if area(operation) in OF_ACCOUNTS} >= {
        "account.get",
        "member.invite",
        "member.update",
        "member.remove",
        "member.accept",
    }


def test_the_roles_are_as_wide_as_they_are_said_to_be() -> None:
    opened = {
        role: {operation.name for operation in OF_CUSTOMERS if role in roles_for(operation)} for role in MEMBER_ROLES
    }
    viewer, editor, developer, manager, billing = (opened[role] for role in MEMBER_ROLES)

    assert viewer < editor < developer < manager
    assert all(not (panel_registry()[name].mutates or panel_registry()[name].secret) for name in viewer)
    assert {name.partition(".")[0] for name in editor - viewer} == {"file"}
    assert "schedule.log" in developer - editor
    assert billing == {"account.list", "account.get"}
    assert not any(name.partition(".")[0] in OF_ACCOUNTS + OF_PERSONS for name in manager)
    assert {"site.delete", "wordpress.login", "sftp.create", "dns.create", "job.cancel"} <= manager - developer
    assert {"database.import", "app.restart", "site.php_update", "schedule.run"} <= developer - editor


def test_what_is_about_a_domain_takes_a_membership_of_the_whole_account() -> None:
    """Its zone is that of all sites of the account in it."""
    opened = {operation.name for operation in OF_CUSTOMERS if whole_accounts_only(operation)}

    of_domains = {operation.name for operation in OF_CUSTOMERS if area(operation) in ("dns", "domain")}
    assert {"dns.list", "dns.create", "dns.point", "domain.add", "domain.update"} <= of_domains
    assert opened == of_domains | {"backup.configuration"}


@pytest.mark.parametrize("role", MemberRole)
async def test_a_member_of_an_account_may_what_the_role_says(panel: PanelHarness, role: MemberRole) -> None:
    victim = await tenant(panel, "victim")
    token = await member(panel, victim.id, role)
    before = await records_of(panel.database, victim)

    found = await answers(panel, BOUNDED, lambda operation: about(operation, victim, token))

    def fits(name: str, answer: Answered) -> bool:
        operation = panel_registry()[name]
        if role in roles_for(operation):
            return seen(answer) and not refused(answer, operation)
        return refused(answer, operation)

    assert unexpected(found, fits) == {}
    if role in (MemberRole.VIEWER, MemberRole.BILLING):
        assert await records_of(panel.database, victim) == before


@pytest.mark.parametrize("role", [role for role in MemberRole if role is not MemberRole.BILLING])
async def test_a_member_of_one_site_may_that_there_and_nothing_elsewhere(panel: PanelHarness, role: MemberRole) -> None:
    victim, other = await tenant(panel, "victim"), await tenant(panel, "other")
    token = await member(panel, victim.id, role, victim.ids["sites"])
    # The other's site becomes a further one of the same customer's.
    for table in ("sites", "dns_zones"):
        await panel.database.execute(f"UPDATE {table} SET owner_id = $1 WHERE owner_id = $2", victim.id, other.id)
    before = await records_of(panel.database, other)
    of_site = [each for each in BOUNDED if area(each) not in OF_ACCOUNTS and each.name != "site.create"]

    elsewhere = await answers(panel, of_site, lambda operation: about(operation, other, token))
    there = await answers(panel, of_site, lambda operation: about(operation, victim, token))

    def fits(name: str, answer: Answered) -> bool:
        operation = panel_registry()[name]
        if role in roles_for(operation):
            return seen(answer) and not refused(answer, operation)
        return refused(answer, operation)

    def of_one_site(name: str, answer: Answered) -> bool:
        operation = panel_registry()[name]
        return refused(answer, operation) if whole_accounts_only(operation) else fits(name, answer)

    assert unexpected(elsewhere, lambda name, answer: answer.status == 404) == {}
    assert unexpected(there, of_one_site) == {}
    assert await records_of(panel.database, other) == before


async def test_a_manager_of_one_site_gets_no_wildcard_and_restores_no_names(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    tokens = {
        "the site": await member(panel, victim.id, MemberRole.MANAGER, victim.ids["sites"]),
        "the account": await member(panel, victim.id, MemberRole.MANAGER),
    }
    certificate, restore = f"/sites/{victim.ids['sites']}/ssl", f"/backups/{victim.ids['backups']}/restore"
    asked = {
        "wildcard": (certificate, {"challenge": "dns-01", "wildcards": ["*.victim.example"]}),
        "names": (restore, {"parts": ["configuration"]}),
        "certificate": (certificate, {}),
        "files": (restore, {"parts": ["files"]}),
    }

    beyond = {
        (of, what)
        for of, token in tokens.items()
        for what, (path, body) in asked.items()
        if "whole account" in (await panel.program(token).post(path, body)).text
    }

    assert beyond == {("the site", "wildcard"), ("the site", "names")}


async def test_what_is_of_another_account_is_absent_to_a_member(panel: PanelHarness) -> None:
    account, foreign = await tenant(panel, "account"), await tenant(panel, "foreign")
    token = await member(panel, account.id, MemberRole.MANAGER)
    before = await records_of(panel.database, foreign)

    found = await answers(panel, ABOUT_ONE, lambda operation: about(operation, foreign, token))
    absent = await answers(panel, ABOUT_ONE, lambda operation: filled(operation, nobodys, about=foreign, token=token))

    assert unexpected(found, lambda name, answer: answer.status == 404) == {}
    assert unexpected(found, lambda name, answer: answer.text == absent[name].text) == {}
    assert await records_of(panel.database, foreign) == before


@pytest.mark.parametrize("state", ["invited", "removed", "suspended"])
async def test_a_membership_that_is_not_in_force_opens_nothing(panel: PanelHarness, state: str) -> None:
    victim = await tenant(panel, "victim")
    token = await member(panel, victim.id, MemberRole.MANAGER)
    end = {
        "invited": "UPDATE account_members SET accepted_at = NULL WHERE account_id = $1",
        "removed": "DELETE FROM account_members WHERE account_id = $1",
        "suspended": "UPDATE users SET suspended_at = now(), suspension_reason = 'unpaid' WHERE id = $1",
    }[state]
    await panel.database.execute(end, victim.id)

    asked = [operation for operation in ABOUT_ONE if bounded(operation)]
    found = await answers(panel, asked, lambda operation: about(operation, victim, token))
    lists = await answers(panel, LISTS, lambda operation: about(operation, victim, token))

    assert unexpected(found, lambda name, answer: answer.status == 404) == {}
    shown = {name for name, answer in lists.items() if victim.marks & _words(answer.text)}
    assert shown <= {"membership.list"}


@pytest.mark.parametrize("role", MemberRole)
async def test_lists_show_a_member_what_the_role_may_see_and_no_more(panel: PanelHarness, role: MemberRole) -> None:
    account, foreign = await tenant(panel, "account"), await tenant(panel, "foreign")
    token = await member(panel, account.id, role)

    found = await answers(panel, LISTS, lambda operation: about(operation, account, token))

    about_sites = {operation.name for operation in LISTS if area(operation) not in OF_PERSONS} - set(NO_SITE)
    shown = {name for name, answer in found.items() if account.marks & _words(answer.text)}
    assert shown & about_sites == {name for name in about_sites if role in roles_for(panel_registry()[name])}
    assert not any(foreign.marks & _words(answer.text) for answer in found.values())


@pytest.mark.parametrize("whole_account", [True, False])
@pytest.mark.parametrize("role", [role for role in MemberRole if role is not MemberRole.BILLING])
async def test_a_site_says_what_its_caller_may_do_and_the_operations_hold_to_it(
    panel: PanelHarness, role: MemberRole, whole_account: bool
) -> None:
    victim = await tenant(panel, "victim")
    site = victim.ids["sites"]
    token = await member(panel, victim.id, role, None if whole_account else site)
    asked = [each for each in BOUNDED if about_sites(each) and each.name not in IN_THE_BODY]

    said = set((await panel.program(token).get(f"/sites/{site}/operations")).json()["operations"])
    found = await answers(panel, asked, lambda operation: about(operation, victim, token))

    assert said <= {operation.name for operation in BOUNDED + LISTS}
    for name, answer in found.items():
        # Other members are not there for one of a single site.
        assert (name in said) is (seen(answer) and not refused(answer, panel_registry()[name])), name


async def test_what_a_narrow_token_may_not_do_is_not_named(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    path = f"/sites/{victim.ids['sites']}/operations"
    clients = [panel.program(await panel.token(victim.id, scopes)) for scopes in (("admin",), ("read",), ("files",))]

    everything, reads, files = [set((await client.get(path)).json().get("operations", ())) for client in clients]

    assert {"site.delete", "member.invite", "schedule.log"} <= everything
    assert reads == {name for name in everything if panel_registry()[name].route.method is Method.GET} - {
        name for name in everything if panel_registry()[name].secret
    }
    assert files == set()


async def test_a_token_of_a_member_is_bounded_by_its_scope_and_by_the_role(panel: PanelHarness) -> None:
    victim = await tenant(panel, "victim")
    person = await panel.person("editor@example.com", "member")
    await panel.database.execute(
        """INSERT INTO account_members (account_id, user_id, role, invited_by, accepted_at)
           VALUES ($1, $2, 'editor', 'the owner', now())""",
        victim.id,
        person,
    )
    files, databases = [await panel.token(person, (scope,)) for scope in ("files", "databases")]
    site = f"/sites/{victim.ids['sites']}/files/mkdir"

    allowed = await panel.program(files).post(site, {"path": "new"})
    beyond_scope = await panel.program(databases).post(site, {"path": "new"})
    beyond = await panel.program(databases).post(f"/databases/{victim.ids['databases']}/export")

    assert allowed.status_code not in (401, 403, 404)
    assert "scope files" in beyond_scope.json()["error"]["message"]
    assert beyond.status_code == 403
    assert "developer or manager" in beyond.json()["error"]["hint"]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w.@-]+", text))
