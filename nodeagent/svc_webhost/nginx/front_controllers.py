"""Rules that lead paths without a file to a program: to `/index.php`, or to the site's own front controllers.

`$svc_front` is where the request leads if no file has its path. It is set before any location is chosen, so that all
locations that fall back use the same one; the innermost front controller sets it last.

Requests are led by `try_files`, and not by `rewrite ... last`: an internal redirect of `try_files` is checked against
denied and protected paths again, with the program's own path.

Why: docs/decisions/0062-front-controllers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from svc_webhost.accepted import ENDS, WHOLE
from svc_webhost.nginx.access import OWN_OF_COPIES
from svc_webhost.nginx.model import FrontController, SiteServer

_NO_FILE: Final = "/."
"""The first argument of a `try_files` that only leads on: the root is never a file."""
FURTHER_ARGUMENTS: Final = ("map $args $svc_further {", '"" "";', 'default "&$args";', "}")
"""The visitor's own query after a parameter of ours; for the part that all sites share."""


def fronted(site: SiteServer, otherwise: str) -> str:
    """What answers for paths without a file, as the last argument of `try_files`. `otherwise`: for paths of no front
    controller."""
    return "$svc_front" if site.front_controllers else otherwise


def front_rules(site: SiteServer, otherwise: str) -> Iterator[str]:
    if not site.front_controllers:
        return
    yield f'set $svc_front "{otherwise}";'
    if path_info(site):
        yield "uninitialized_variable_warn off;"
    controllers = list(enumerate(sorted(site.front_controllers, key=lambda each: len(each.path))))
    for number, each in controllers:
        yield from _leads(number, each)
    for number, each in controllers:
        if each.path_info:
            yield from _with_path_info(number, each)
    # A redirect of the same path comes first, and nginx accepts only one location of a name.
    taken = {f'{"^~" if each.below else "="} "{each.source}"' for each in site.path_redirects}
    taken |= {f'= "{path}"' for path in OWN_OF_COPIES}
    locations = [location for _, each in controllers if not each.serves_files for location in _locations(each.path)]
    for location in dict.fromkeys(locations):
        if location not in taken:
            yield f"location {location} {{"
            yield f"try_files {_NO_FILE} $svc_front;"
            yield "}"


def path_info(site: SiteServer) -> dict[str, str]:
    """The FastCGI parameter, where a front controller may set it: of the two variables one is empty."""
    if not any(each.path_info for each in site.front_controllers):
        return {}
    return {"PATH_INFO": '"$path_info$svc_path_info"'}


def _leads(number: int, controller: FrontController) -> Iterator[str]:
    path = re.escape(controller.path.rstrip("/"))
    rest, leads = f"$svc_rest{number}", f"{controller.php_file}$is_args$args"
    if controller.parameter is not None:
        # From the address as it was sent, still encoded: the path itself is decoded, and a `&` or `?` in it would be
        # read as the query's.
        yield f'set {rest} "";'
        yield f'if ($request_uri ~ "^{path}/([^?]*)") {{'
        yield f"set {rest} $1;"
        yield "}"
        leads = f"{controller.php_file}?{controller.parameter}={rest}$svc_further"
    elif controller.path_info:
        yield f'set {rest} "";'
        yield f'if ($uri ~ "{WHOLE}^{path}/(.*)") {{'
        yield f"set {rest} $1;"
        yield "}"
        leads = _name(number)
    ends = "/" if controller.path.endswith("/") else ENDS
    yield f'if ($uri ~ "{WHOLE}^{path}{ends}") {{'
    yield f'set $svc_front "{leads}";'
    yield "}"


def _with_path_info(number: int, controller: FrontController) -> Iterator[str]:
    """The variable outlives the internal redirect to the program, whose own path has no path info."""
    yield f"location {_name(number)} {{"
    yield f'set $svc_path_info "/$svc_rest{number}";'
    yield f'try_files {_NO_FILE} "{controller.php_file}$is_args$args";'
    yield "}"


def _locations(path: str) -> list[str]:
    """The locations of a path whose files are not served."""
    below = f'^~ "{path.rstrip("/")}/"'
    return [below] if path.endswith("/") else [f'= "{path}"', below]


def _name(number: int) -> str:
    return f"@svc_front{number}"
