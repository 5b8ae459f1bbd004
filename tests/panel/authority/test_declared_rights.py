"""Every operation of customers is in a scope and in a role of members, or closed to them on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from svc.panel.accounts.member_roles import roles_for
from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.principal import Access

OF_CUSTOMERS: Final = [operation for operation in panel_registry() if operation.access is Access.SIGNED_IN]

WHOLE_AUTHORITY: Final[Mapping[str, str]] = {
    "account": "what was sold to the account",
    "alert": "the caller's own",
    "impersonation": "the caller's own session",
    "job.cancel": "the scope jobs only reads",
    "member": "gives others rights",
    "membership": "the caller's own",
    "php.versions": "the scope read reaches it, and it changes nothing",
    "second_factor": "the caller's own credentials",
    "session": "the caller's own session",
    "sftp": "a login outlives the token that created it",
    "token": "the caller's own credentials",
    "user": "the caller's own account",
}
"""Operations that only the scopes `read` and `admin` reach, by their names or areas, and why."""

OWNERS_ALONE: Final[Mapping[str, str]] = {
    "alert": "the caller's own",
    "impersonation": "the caller's own session",
    "import": "creates sites and databases of the account",
    "member": "gives others rights",
    "membership": "the caller's own",
    "migration": "reports on an import",
    "second_factor": "the caller's own credentials",
    "session": "the caller's own session",
    "token": "the caller's own credentials",
    "user": "the caller's own account",
}
"""Operations that no role of members has, and why."""


def names(listed: Mapping[str, str], operation: str) -> set[str]:
    """Which of the listed names and areas the operation falls under."""
    return {operation, operation.partition(".")[0]} & listed.keys()


def in_a_scope(operation: str) -> bool:
    areas = [scope for scope in REALM.scopes.names if scope not in ("read", "admin")]
    return any(REALM.scopes.allows(frozenset({area}), panel_registry()[operation]) for area in areas)


@pytest.mark.parametrize(
    ("listed", "opened"),
    [
        (WHOLE_AUTHORITY, {each.name for each in OF_CUSTOMERS if in_a_scope(each.name)}),
        (OWNERS_ALONE, {each.name for each in OF_CUSTOMERS if roles_for(each)}),
    ],
    ids=["scope", "role"],
)
def test_every_operation_is_opened_by_name_or_closed_on_purpose(listed: Mapping[str, str], opened: set[str]) -> None:
    closed = {each.name for each in OF_CUSTOMERS} - opened

    assert {name for name in closed if not names(listed, name)} == set(), "add it to a scope or role, or say why not"
    assert listed.keys() - {found for name in closed for found in names(listed, name)} == set(), "these are opened"
