"""Front controllers of .htaccess files that are front controllers of the site here (`Fronted`): a program that answers
for the paths of a folder, or for those that start with a name, and is given the rest of the path in the query or as its
path info.

`RewriteRule ^ index.php` at the top needs none: nginx does so for each site with PHP.

Invariant: a wish leads exactly those paths to the program that the rule leads there, with the same query. What other
rules of the file say of these paths is `rewriting`'s to compare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from svc_webhost.accepted import is_front_controller, is_query_parameter
from svc_webhost.htaccess.verdicts import Fronted

# Patterns for every path, with the whole path as `$1` (True) or without a group.
EVERY_PATH: Final = {
    **dict.fromkeys((".", "^", ".*", "^.*$", "^.*", ".?", "^.+$", ".+"), False),
    **dict.fromkeys(("^(.*)$", "(.*)", "^(.+)$", "(.+)", "^(.*)", r"^([\s\S]*)$", "^([^?]*)$", "^([^?]*)"), True),
}
_NAME: Final = r"[\w.~@+,=:&!-]|\\[.~@+,!-]"
# A name, and what follows it: `^api/(.*)$`, `^/?wiki(/.*)?$`, `^api(?:/(.*))?$`, `^remote/`.
_PREFIX: Final = re.compile(
    rf"\^(?:/\?)?(?P<name>(?:{_NAME})+(?:/(?:{_NAME})+)*)"
    r"(?P<rest>/\(\.[*+]\)\$?|/|/\.\*\$?|\(/\.\*\)\?\$|\(/\|\$\)|\(\?:/\|\$\)|\(\?:/\(\.\*\)\)\?\$)"
)
_NAMES: Final = re.compile(rf"\^\((?:\?:)?(?P<names>(?:{_NAME}|[|/])+)\)(?P<rest>/\(\.\*\)\$?|/|/\.\*\$?|\(/\|\$\))")
"""The same for several names: `^(config|vendor)(/|$)`."""
_WITH_ITSELF: Final = {"(/.*)?$", "(/|$)", "(?:/|$)", "(?:/(.*))?$"}
"""What may follow the name where the rule is about the name itself as well."""
_RESTS: Final = {"/(.*)", "/(.*)$", "/(.+)", "/(.+)$", "(?:/(.*))?$"}
"""What follows where `$1` is the rest of the path without its slash."""
_TARGET: Final = re.compile(
    r"(?P<base>%\{ENV:(?:BASE|REWRITEBASE|CWD)\}/?|%\{DOCUMENT_ROOT\}/|\./|/|)"
    r"(?P<program>(?:[\w~@+-][\w.~@+-]*/)*[\w~@+-][\w.~@+-]*\.php)"
    r"(?P<path_info>/\$1)?(?:\?(?P<parameter>[A-Za-z0-9_]+)=\$1)?"
)


@dataclass(frozen=True)
class FrontRule:
    """A rule with these words, of a file in the folder with this URL path (`/` or `/blog/`). `base`: its RewriteBase;
    None if it has none. `serves_files`: its conditions leave existing files alone."""

    pattern: str
    target: str
    folder: str
    base: str | None
    flags: frozenset[str]
    serves_files: bool


def program_of(rule: FrontRule) -> str | None:
    """The path of the program that the rule leads to; None if it leads to something else."""
    match = _TARGET.fullmatch(rule.target)
    return None if match is None else _program(match, rule)


def front_controllers(rule: FrontRule, asked_path: str | None) -> list[Fronted]:
    """The front controllers that do what the rule does; none if none do. `asked_path`: a condition of the rule that the
    address starts with this path, which ends with a slash."""
    found = _front_controller(rule, asked_path)
    if found is not None:
        return [found]
    match = _NAMES.fullmatch(rule.pattern)
    if match is None or "$" in rule.target or asked_path is not None:
        return []
    alone = [
        _front_controller(replace(rule, pattern=f"^{name}{match['rest']}"), None) for name in match["names"].split("|")
    ]
    return [each for each in alone if each is not None] if all(alone) else []


def _front_controller(rule: FrontRule, asked_path: str | None) -> Fronted | None:
    match = _TARGET.fullmatch(rule.target)
    if match is None:
        return None
    program = _program(match, rule)
    place = _place(rule.pattern, rule.folder)
    if program is None or place is None:
        return None
    path, whole = place
    if asked_path is not None:
        # With a group in the pattern, `$1` would be the path from the folder, not from the path of the condition.
        if path != rule.folder or whole or not asked_path.startswith(rule.folder):
            return None
        path = asked_path
    parameter, path_info = match["parameter"], match["path_info"] is not None
    if (parameter is not None or path_info) and not whole:
        return None
    if parameter is not None and (path_info or "qsa" not in rule.flags or not is_query_parameter(parameter)):
        return None
    # Capitals of a name are compared here.
    if "nc" in rule.flags and path != rule.folder and path.lower() != path.upper():
        return None
    found = Fronted(path, program, path_info, parameter, rule.serves_files)
    return found if is_front_controller(path, program, serves_files=rule.serves_files) else None


def _program(match: re.Match[str], rule: FrontRule) -> str | None:
    match match["base"]:
        case "/" | "%{DOCUMENT_ROOT}/":
            return f"/{match['program']}"
        case "" | "./" if rule.base is not None:
            return f"{rule.base.rstrip('/')}/{match['program']}" if rule.base.startswith("/") else None
    return f"{rule.folder}{match['program']}"


def _place(pattern: str, folder: str) -> tuple[str, bool] | None:
    """The path of the front controller, and whether `$1` is the rest of the path below it."""
    if pattern in EVERY_PATH:
        return folder, EVERY_PATH[pattern]
    match = _PREFIX.fullmatch(pattern)
    if match is None:
        return None
    path = folder + re.sub(r"\\(.)", r"\1", match["name"])
    return path if match["rest"] in _WITH_ITSELF else f"{path}/", match["rest"] in _RESTS
