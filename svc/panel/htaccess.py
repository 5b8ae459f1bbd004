"""What becomes of a site's .htaccess files: nginx does not read them, and each of their directives gets a verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from svc.panel.access import SiteRequest, site_of
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.host.confined.protocol import Find
from svc_actors.panel.files import site_folder
from svc_actors.panel.htaccess import Situation, Verdict, judge, parse
from svc_actors.panel.htaccess.judging import Redirected
from svc_actors.panel.sites.php import PHP_TYPES
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteType
from svc_actors.store import Database

operations = Operations[Panel]()

_NAME: Final = ".htaccess"
_MOST_BYTES: Final = 256 << 10
_SEARCH_SECONDS: Final = 60.0
_SERVED: Final = (*PHP_TYPES, SiteType.STATIC)
"""Of the other types nginx serves no file."""


class HtaccessLine(Model):
    """`translated`: the panel was told the same. `same`: nginx does so by itself. `harmless`: visitors get the same
    pages without it. `blocks`: something else would be served, or something to somebody who shall not have it."""

    line: int
    text: str
    verdict: Verdict
    reason: str


class HtaccessFile(Model):
    path: str
    lines: list[HtaccessLine]


class HtaccessReport(Model):
    """`ready`: nothing blocks, and everything was read (`complete`). `counts`: how many lines have each verdict."""

    ready: bool
    complete: bool
    counts: dict[Verdict, int]
    files: list[HtaccessFile]


class _Found(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    text: str


_FOUND: Final = TypeAdapter(list[_Found])


@operations.declare(
    "htaccess.analyse",
    "What becomes of the directives in a site's .htaccess files",
    Route.get("/sites/{id}/htaccess"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    # As what is in any file of a site: there may be passwords in one.
    secret=True,
)
async def analyse(context: Context[Panel], request: SiteRequest) -> HtaccessReport:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    folder = site_folder(services.config.folders, site)
    answer = await services.files.ask(folder, Find("", _NAME, _MOST_BYTES), seconds=_SEARCH_SECONDS)
    redirects = await _redirects(services.database, site)
    files = [_judged(found, site, redirects) for found in _FOUND.validate_json(answer.payload)]
    counts = Counter(line.verdict for file in files for line in file.lines)
    complete = bool(answer.result["complete"])
    return HtaccessReport(
        ready=complete and not counts[Verdict.BLOCKS],
        complete=complete,
        counts={verdict: counts[verdict] for verdict in Verdict},
        files=files,
    )


def _judged(found: _Found, site: SiteRow, redirects: tuple[Redirected, ...]) -> HtaccessFile:
    path = PurePosixPath(found.path)
    served = site.type in _SERVED and path.parts[:1] == ("public",)
    situation = Situation(
        folder=path.parent.relative_to("public") if served else None,
        php=site.type in PHP_TYPES,
        wordpress=site.type is SiteType.WORDPRESS,
        force_https=site.force_https,
        redirects=redirects,
    )
    judged = judge(parse(found.text), situation)
    return HtaccessFile(
        path=found.path,
        lines=[
            HtaccessLine(
                line=one.directive.line,
                text=one.directive.text,
                verdict=one.opinion.verdict,
                reason=one.opinion.reason,
            )
            for one in judged
        ],
    )


async def _redirects(database: Database, site: SiteRow) -> tuple[Redirected, ...]:
    rows = await database.fetch("SELECT path, target, status, below FROM site_redirects WHERE site_id = $1", site.id)
    return tuple(Redirected(row["path"], row["target"], row["status"], row["below"]) for row in rows)
