"""How the owner gets into a new machine: the account, its password, its SSH keys.

Invariant: a chosen password leaves this module only as its SHA-512 crypt hash, except for Windows, which takes no hash.
A generated password is also returned in the clear, for the single answer that shows it (specification, Password rule
for set_password).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import trio
from passlib.hash import sha512_crypt  # type: ignore[import-untyped]

from svc.controller.machines.models import AccessMode
from svc.identity.passwords import check_password
from svc.registry.principal import Principal
from svc_actors.controller.machines.windows import ACCOUNT
from svc_actors.store import Queryable
from svc_common.errors import invalid, not_found, wrong_field
from svc_common.public_keys import parse_public_key

MAX_KEYS: Final = 32
GENERATED_LENGTH: Final = 20
_ROUNDS: Final = 5000
_KINDS: Final = (string.ascii_lowercase, string.ascii_uppercase, string.digits, "-_.+=")
_threads = trio.CapacityLimiter(2)


@dataclass(frozen=True)
class GuestPassword:
    """`generated` is the password itself if the service generated it."""

    hash: str
    generated: str | None = field(repr=False)


@dataclass(frozen=True)
class WindowsPassword:
    """A password for Windows, in the clear, since Windows takes no crypt hash. `generated` as in `GuestPassword`."""

    itself: str = field(repr=False)
    generated: str | None = field(repr=False)


async def password(chosen: str | None, account: str, *, field: str) -> GuestPassword:
    """The password that the caller chose, or a generated one. Raises invalid if the chosen one breaks the policy."""
    if chosen is None:
        made_up = _made_up(account)
        return GuestPassword(await _crypt(made_up), made_up)
    check_password(chosen, (account,), field=field)
    return GuestPassword(await _crypt(chosen), None)


def windows_password(chosen: str | None, *, field: str) -> WindowsPassword:
    """The password for the administrator account of a Windows machine: the chosen one, or a generated one. Raises
    invalid."""
    if chosen is None:
        made_up = _made_up(ACCOUNT)
        return WindowsPassword(made_up, made_up)
    check_password(chosen, (ACCOUNT,), field=field)
    return WindowsPassword(chosen, None)


def _made_up(account: str) -> str:
    while True:
        password = "".join(secrets.choice("".join(_KINDS)) for _ in range(GENERATED_LENGTH))
        if all(any(character in kind for character in password) for kind in _KINDS) and account not in password:
            return password


async def ssh_keys(
    queryable: Queryable, principal: Principal, given: Sequence[str], key_ids: Sequence[UUID]
) -> tuple[str, ...]:
    """The SSH keys that are given as text together with those given by id, without duplicates. Raises invalid,
    not_found."""
    keys = [parse_public_key(key, field="ssh_keys")[0] for key in given]
    if key_ids:
        rows = await queryable.fetch(
            "SELECT id, public_key FROM ssh_keys WHERE id = ANY($1::uuid[]) AND (user_id = $2 OR $3)",
            list(key_ids),
            principal.user_id,
            principal.is_operator,
        )
        if len(rows) < len(set(key_ids)):
            raise not_found("There is no such SSH key.")
        keys += [row["public_key"] for row in rows]
    return tuple(dict.fromkeys(keys))


def require_way_in(mode: AccessMode, *, password: bool, keys: Iterable[str]) -> None:
    """Raise invalid if nobody could get into the machine, or if the credentials do not fit the access mode."""
    has_keys = any(keys)
    if mode is AccessMode.ROOT_KEY and password:
        raise wrong_field(
            "access_mode", "root_key has no password", hint="Leave the password out, or choose root_password."
        )
    if mode is AccessMode.ROOT_KEY and not has_keys:
        raise wrong_field("access_mode", "root_key needs an SSH key", hint="Give ssh_keys or ssh_key_ids.")
    if mode is AccessMode.ROOT_PASSWORD and not password:
        raise wrong_field("access_mode", "root_password needs a password", hint="Give set_password, or password: true.")
    if not password and not has_keys:
        raise invalid(
            "The machine would have neither an SSH key nor a password, so nobody could sign in.",
            hint="Give ssh_keys, ssh_key_ids, set_password, or password: true.",
        )


def require_windows(mode: AccessMode | None, user_data: str | None) -> None:
    """Raise invalid for settings that a Windows machine does not support: it has only the administrator account, and no
    cloud-init."""
    if user_data is not None:
        raise wrong_field("user_data", "must be left out: a Windows machine has no cloud-init")
    if mode is not None:
        raise wrong_field("access_mode", "must be left out: a Windows machine has its administrator account alone")


def require_none(given: Mapping[str, object]) -> None:
    """Raise invalid for any credentials of a machine that is installed from an ISO: its installer creates the
    accounts."""
    for name, value in given.items():
        if value:
            raise wrong_field(
                name,
                "must be left out: the installer of an ISO creates the accounts",
                hint="Install it on its console.",
            )


async def _crypt(password: str) -> str:
    hashed: str = await trio.to_thread.run_sync(
        sha512_crypt.using(rounds=_ROUNDS).hash, password, limiter=_threads, abandon_on_cancel=True
    )
    return hashed
