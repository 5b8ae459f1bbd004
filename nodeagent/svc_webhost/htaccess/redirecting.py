"""Redirects of Apache that are redirects of the site here: of one path, and of everything below it, to one target.

`Redirect /a /b` sends /a/x to /b/x at Apache. A redirect of the site sends it to /b, and the reason says so. Redirects
by pattern were rejected, as all regular expressions for nginx: one of a customer's could hang it.
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.accepted import CHALLENGES, is_redirect
from svc_webhost.apache.htaccess import Directive, modules, narrowing
from svc_webhost.htaccess.patterns import only_hidden_from_top
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, Redirected, blocks, harmless, same, translated

STATUSES: Final = {"permanent": 301, "temp": 302, "seeother": 303, "gone": 410}
_ERRORS: Final = {403, 404, 410}
_LITERAL: Final = re.compile(r"\^(/?(?:[A-Za-z0-9_/~@,=.-]|\\[./~+-])*)\$")
"""An expression that stands for one path. An unescaped dot counts as a dot, although it matches any character."""
# Modules that every old host has. Within <IfModule> of another module, the line may never have had an effect on the old
# host.
_PRESENT: Final = {"mod_rewrite.c", "mod_alias.c"}


def redirect(directive: Directive, situation: Situation) -> Opinion:
    """Redirect, RedirectPermanent, RedirectTemp."""
    arguments = list(directive.arguments)
    status = {"redirectpermanent": 301, "redirecttemp": 302}.get(directive.name)
    if status is None and arguments and (arguments[0].isdecimal() or arguments[0].lower() in STATUSES):
        first = arguments.pop(0).lower()
        status = STATUSES.get(first) or int(first)
    status = status or 302
    if len(arguments) != 2:
        return blocks("Add it to the site's redirects, if it is one.")
    path, target = arguments
    # If the path's last name contains a dot, the path is a file, and there are no paths below it.
    below = "." not in path.rpartition("/")[2]
    exact = not path.endswith("/")
    wanted = [Redirected(path, target, status, below=False)] if exact else []
    wanted += [Redirected(f"{path.rstrip('/')}/", target, status, below=True)] if below else []
    only = " What is below it goes to the same page." if below else ""
    return _wanted(wanted, directive, situation, f"The site has this redirect.{only}")


def redirect_match(directive: Directive, situation: Situation) -> Opinion:
    """RedirectMatch. Understood are expressions that match one path, and those for hidden files, which are answered
    with 404."""
    if "!mod_rewrite.c" in modules(directive):
        return harmless("It takes the place of rewrite rules on a server that has none.")
    arguments = list(directive.arguments)
    status = 302
    if arguments and (arguments[0].isdecimal() or arguments[0].lower() in STATUSES):
        first = arguments.pop(0).lower()
        status = STATUSES.get(first) or int(first)
    if status in _ERRORS and len(arguments) == 1 and only_hidden_from_top(arguments[0]):
        return same("nginx serves none of these files.")
    path = literal(arguments[0]) if len(arguments) == 2 else None
    if path is None or not path.startswith("/") or re.search(r"[$\\]", arguments[1]):
        return blocks("nginx does not redirect by patterns here. Add redirects of the site.")
    return _wanted([Redirected(path, arguments[1], status, below=False)], directive, situation, "The site has it.")


def rewritten(
    path: str, target: str, status: int, directive: Directive, situation: Situation, *, below: bool
) -> Opinion:
    """A rewrite rule that redirects one path, or all that start so (`below`)."""
    wanted = [Redirected(path, target, status, below=below)]
    return _wanted(wanted, directive, situation, "The site has this redirect.")


def literal(expression: str) -> str | None:
    """The only text that the expression matches; None if it matches others too, or if that is not known."""
    match = _LITERAL.fullmatch(expression)
    return None if match is None else re.sub(r"\\(.)", r"\1", match[1])


def _wanted(wanted: list[Redirected], directive: Directive, situation: Situation, reason: str) -> Opinion:
    if all(map(situation.has, wanted)):
        return translated(reason)
    path, target, status = wanted[0].path, wanted[0].target, wanted[0].status
    also = " and what is below it" if any(each.below for each in wanted) else ""
    advice = f"Add a redirect of {path}{also} to {target}, with the status {status}."
    # Redirect takes a path of the whole site, but has an effect only below the folder of its .htaccess file.
    inside = all(each.path.startswith("/".join(("", *situation.parts, ""))) for each in wanted)
    known = inside and not narrowing(directive) and set(modules(directive)) <= _PRESENT
    possible = known and all(map(_possible, wanted)) and path != "/"
    return blocks(advice, *(wanted if possible else ()))


def _possible(wanted: Redirected) -> bool:
    # Paths of challenges are not redirected, because the certificate authority must get its answer. A redirect to the
    # path itself, or of a folder to a path below it, would be a loop.
    if wanted.path.startswith(CHALLENGES) or wanted.target == wanted.path:
        return False
    if wanted.below and wanted.target.startswith(wanted.path):
        return False
    return is_redirect(wanted.path, wanted.target, wanted.status)
