"""A site's .htaccess files: nginx does not read them, so each of their directives gets a verdict."""

from __future__ import annotations

from collections import Counter

from svc.panel.services import Panel
from svc.panel.sites.access import SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.htaccess import JudgedFile, judged_files
from svc_webhost.htaccess.verdicts import Verdict

operations = Operations[Panel]()


class HtaccessLine(Model):
    """The verdict `translated`: the panel is configured to do the same. `same`: nginx does this by itself. `harmless`:
    visitors get the same pages without it. `blocks`: without it visitors would get other content, or content that they
    may not see."""

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


@operations.declare(
    "htaccess.analyse",
    "How each directive in a site's .htaccess files is handled",
    Route.get("/sites/{id}/htaccess"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    # Secret, like the content of any file of a site: it may contain passwords.
    secret=True,
)
async def analyse(context: Context[Panel], request: SiteRequest) -> HtaccessReport:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    judged = await judged_files(services.files, services.config.folders, services.database, site)
    files = [_shown(file) for file in judged.files]
    counts = Counter(line.verdict for file in files for line in file.lines)
    return HtaccessReport(
        ready=judged.complete and not counts[Verdict.BLOCKS],
        complete=judged.complete,
        counts={verdict: counts[verdict] for verdict in Verdict},
        files=files,
    )


def _shown(file: JudgedFile) -> HtaccessFile:
    return HtaccessFile(
        path=str(file.path),
        lines=[
            HtaccessLine(line=one.line, text=one.text, verdict=one.verdict, reason=one.reason) for one in file.lines
        ],
    )
