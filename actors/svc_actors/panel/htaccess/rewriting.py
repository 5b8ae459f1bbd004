"""The rewrite rules that nginx follows without being told: a front controller, and HTTPS where the site forces it.

A rule is judged with the conditions before it. Every other rule blocks: what a rewrite does is not known by its text
alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from svc_actors.panel.htaccess.parsing import Directive
from svc_actors.panel.htaccess.verdicts import Opinion, blocks, same

_FRONT: Final = {"index.php", "/index.php"}
_EVERYTHING: Final = {".", "^", ".*", "^.*$", "^(.*)$", "(.*)", "^.*", "^(.+)$"}
_NO_FILE: Final = {"!-f", "!-d", "!-l"}
_ENDS: Final = {"l", "last", "end", "qsa", "nc"}


def opinions(directives: Sequence[Directive], front_controller: bool, force_https: bool) -> Mapping[int, Opinion]:
    """By the places of the directives. `front_controller`: nginx asks index.php for what is no file, as it does at the
    top of a site with PHP."""
    found: dict[int, Opinion] = {}
    conditions: list[int] = []
    for number, directive in enumerate(directives):
        if directive.name == "rewritecond":
            conditions.append(number)
        elif directive.name == "rewriterule":
            opinion = _rule(directive, [directives[each] for each in conditions], front_controller, force_https)
            found |= dict.fromkeys((*conditions, number), opinion)
            conditions = []
        elif directive.name in ("rewritemap", "redirectmatch"):
            found[number] = blocks("nginx does not rewrite or redirect by patterns here. Add redirects of the site.")
    return found | dict.fromkeys(conditions, blocks("No rule follows these conditions."))


def _rule(rule: Directive, conditions: Sequence[Directive], front_controller: bool, force_https: bool) -> Opinion:
    if len(rule.arguments) not in (2, 3):
        return blocks("It is no rule.")
    pattern, target, flags = rule.arguments[0], rule.arguments[1], _flags(rule)
    if any(flag in ("f", "forbidden", "g", "gone") or flag.startswith("r=4") for flag in flags):
        return blocks("It keeps visitors from something that nginx would serve.")
    asked = [tuple(condition.arguments) for condition in conditions]
    if front_controller:
        if pattern in (r"^index\.php$", "^index.php$") and target == "-" and not asked and flags <= _ENDS:
            return same("nginx runs index.php where it is asked for.")
        if target == "-" and [flag.partition(":")[0] for flag in flags] == ["e=http_authorization"]:
            return same("PHP is told of the header Authorization.")
        if pattern in _EVERYTHING and target in _FRONT and flags <= _ENDS and _whatever_is_no_file(asked):
            return same("nginx asks index.php for what is no file.")
    if _leads_to_https(target) and pattern in _EVERYTHING and asked and all(_plain_http(one) for one in asked):
        if force_https:
            return same("Visitors are sent to HTTPS.")
        return blocks("Have the site send its visitors to HTTPS (`force_https`).")
    return blocks("nginx does not rewrite this. See whether the application, or a redirect of the site, can do it.")


def _flags(rule: Directive) -> set[str]:
    written = rule.arguments[2] if len(rule.arguments) == 3 else "[]"
    return {flag.strip().lower() for flag in written.strip("[]").split(",") if flag.strip()}


def _whatever_is_no_file(conditions: Sequence[tuple[str, ...]]) -> bool:
    """Neither a file nor a folder, and nothing besides but that it is not index.php itself."""
    tests = {words[1] for words in conditions if len(words) == 2 and words[0] == "%{REQUEST_FILENAME}"}
    rest = [words for words in conditions if not (len(words) == 2 and words[0] == "%{REQUEST_FILENAME}")]
    itself = all(words[:2] == ("%{REQUEST_URI}", r"!^/index\.php") and len(words) == 2 for words in rest)
    return {"!-f", "!-d"} <= tests <= _NO_FILE and itself


def _leads_to_https(target: str) -> bool:
    return re.fullmatch(r"https://%\{(HTTP_HOST|SERVER_NAME)\}(%\{REQUEST_URI\}|/\$1)", target) is not None


def _plain_http(condition: tuple[str, ...]) -> bool:
    tested, expected, *_ = (*condition, "", "")
    if tested == "%{HTTPS}":
        return expected.lower() in ("off", "!=on", "!on", "^off$")
    return (tested, expected) in (("%{SERVER_PORT}", "80"), ("%{SERVER_PORT}", "^80$"), ("%{SERVER_PORT}", "!^443$"))
