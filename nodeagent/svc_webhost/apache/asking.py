"""Finds the lines with which an .htaccess file asks for a password (mod_auth_basic, mod_authn_file, mod_authz_user)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from svc_webhost.apache.htaccess import Directive, Lines, Section, narrowing
from svc_webhost.apache.passwords import NoPasswordsError

ASKING: Final = frozenset({"authtype", "authuserfile"})
_SAYS_WHO: Final = frozenset({"require", "allow", "deny", "order", "satisfy"})
_KNOWN: Final = ASKING | {"authname", "authbasicprovider", "authgroupfile"}


@dataclass(frozen=True)
class PasswordAsked:
    """Visitors of the folder and its subfolders need the password of one of `users`; None: of any login in `file`,
    which is the path on the other host."""

    file: str
    users: frozenset[str] | None


def password_asked(sections: tuple[Section, ...], lines: Lines) -> PasswordAsked:
    """The password protection that the lines in these sections configure. Raises `NoPasswordsError` if they require
    something else than the password of a login, or not for the whole folder."""
    siblings = lines.directly_in(sections)
    if siblings and narrowing(siblings[0]):
        raise NoPasswordsError("only a part of the folder is protected by a password")
    asking = lines.once("asking", lambda: {each.sections for each in lines if each.name in ASKING})
    if not asking <= {sections}:
        raise NoPasswordsError("several sections of the file say how a password is asked for")
    ways = {each.arguments[0].lower() if each.arguments else "" for each in siblings if each.name == "authtype"}
    if ways != {"basic"}:
        raise NoPasswordsError(f"a password is asked for by AuthType {' and '.join(sorted(ways)) or 'of another file'}")
    for each in siblings:
        if each.name.startswith("auth") and not _is_known(each):
            raise NoPasswordsError(f"logins come from something other than a password file: {each.text}"[:200])
    files = [each.arguments for each in siblings if each.name == "authuserfile"]
    if not files or len(files[-1]) != 1:
        raise NoPasswordsError("it lacks an AuthUserFile that names the file of the passwords")
    return PasswordAsked(files[-1][0], _users(siblings))


def _is_known(directive: Directive) -> bool:
    match directive.name:
        case "authbasicprovider":
            return [argument.lower() for argument in directive.arguments] == ["file"]
        case "authgroupfile":
            return directive.arguments == ("/dev/null",)
    return directive.name in _KNOWN


def _users(siblings: Sequence[Directive]) -> frozenset[str] | None:
    """Each `Require` admits further users."""
    users: set[str] = set()
    everybody = asked = False
    for each in siblings:
        if each.name not in _SAYS_WHO:
            continue
        if each.name != "require":
            raise NoPasswordsError(f"visitors may also come in without a password: {each.text}"[:200])
        asked = True
        kind, *named = each.arguments or ("",)
        if kind.lower() == "valid-user" and not named:
            everybody = True
        elif kind.lower() == "user" and named:
            users.update(named)
        else:
            raise NoPasswordsError(f"it does not let visitors in by their own login: {each.text}"[:200])
    if not asked:
        raise NoPasswordsError("it lacks a Require that says who may come in")
    return None if everybody else frozenset(users)
