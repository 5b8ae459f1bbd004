"""What a member of a customer's account may do: the one table of roles.

A role names operations as scopes do, by prefixes of their names that end at a dot. An operation that no role names may
only be used by the customer, so a new operation is not open to members until it is added here. The customer needs no
role: the owner of a site may use every operation on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from svc.registry.scopes import Scoped
from svc_common.errors import ServiceError, forbidden


class MemberRole(StrEnum):
    """From the narrowest to the widest; `BILLING` is separate, and sees no site."""

    VIEWER = "viewer"
    EDITOR = "editor"
    DEVELOPER = "developer"
    MANAGER = "manager"
    BILLING = "billing"


@dataclass(frozen=True)
class Rights:
    """Prefixes of operations. The role may use all operations of `may`, and those operations of `sees` that change
    nothing and reveal no secret."""

    sees: tuple[str, ...]
    may: tuple[str, ...] = ()

    def hold(self, operation: Scoped) -> bool:
        looks = not (operation.mutates or operation.secret)
        return _names(self.may, operation) or (looks and _names(self.sees, operation))


LISTS_OF_A_SITE: Final = ("denied_path", "front_controller", "protected_path", "redirect")
"""Rules of the web server for paths of a site. They are in the scope `sites`; every role with sites sees them, and
managers change them."""
_SITES: Final = (
    *LISTS_OF_A_SITE,
    "app",
    "backup",
    "certificate",
    "database",
    "database_user",
    "dns",
    "domain",
    "export",
    "file",
    "htaccess",
    "job",
    "php",
    "schedule",
    "sftp",
    "site",
    "staging",
    "wordpress",
)
_DEVELOPMENT: Final = (
    "app",
    "database",
    "database_user",
    "export",
    "file",
    "htaccess",
    "php",
    "schedule",
    "site.php_restart",
    "site.php_update",
    "staging",
)

MEMBER_ROLES: Final[Mapping[MemberRole, Rights]] = {
    MemberRole.VIEWER: Rights(sees=_SITES),
    MemberRole.EDITOR: Rights(sees=_SITES, may=("file",)),
    MemberRole.DEVELOPER: Rights(sees=_SITES, may=_DEVELOPMENT),
    MemberRole.MANAGER: Rights(sees=_SITES, may=_SITES),
    MemberRole.BILLING: Rights(sees=("account",)),
}

_OF_WHOLE_ACCOUNTS: Final = ("backup.configuration", "dns", "domain")
"""Operations about a domain: all sites of the account in it share its zone, and any site may claim any of its names. A
member of one site may not use them, whatever their role."""


def about_sites(operation: Scoped) -> bool:
    """Whether an operation is about one site, about who may work in it, or about where it came from."""
    return _names((*_SITES, "member", "migration"), operation)


def roles_for(operation: Scoped) -> frozenset[str]:
    """The roles with which a member may call the operation."""
    return frozenset(role for role, rights in MEMBER_ROLES.items() if rights.hold(operation))


def whole_accounts_only(operation: Scoped) -> bool:
    """Whether a membership of one site is not enough for the operation."""
    return _names(_OF_WHOLE_ACCOUNTS, operation)


def beyond_role(sufficient: frozenset[str], *, whole_account: bool = False) -> ServiceError:
    """The refusal of an operation to a member; `sufficient` are the roles that may call it, with `whole_account` only
    as members of all of the account."""
    if not sufficient:
        return forbidden("Members may not do this.", hint="The owner of the account can.")
    needed = [role.value for role in MEMBER_ROLES if role in sufficient]
    where = " in the whole account" if whole_account else ""
    return forbidden(
        "Your role does not allow this.",
        hint=f"It takes the role {' or '.join(needed)}{where}, which the owner of the account can give you.",
    )


def _names(prefixes: tuple[str, ...], operation: Scoped) -> bool:
    return any(operation.name == prefix or operation.name.startswith(f"{prefix}.") for prefix in prefixes)
