"""The lines of a site's .htaccess files that say what nginx does not do."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from svc_actors.host.confined.protocol import Find
from svc_actors.host.confined_client import ConfinedFiles
from svc_actors.host.folders import HostFolders
from svc_actors.panel.files import site_folder
from svc_actors.panel.htaccess import Situation, Verdict, judge, parse
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteType


async def blocking_lines(files: ConfinedFiles, folders: HostFolders, site: SiteRow) -> list[str]:
    """Each with its place and the reason."""
    answer = await files.ask(site_folder(folders, site), Find("", ".htaccess", 256 << 10), seconds=60)
    blocking: list[str] = []
    for file in json.loads(answer.payload):
        path = PurePosixPath(file["path"])
        served = path.parts[:1] == ("public",)
        situation = Situation(
            folder=path.parent.relative_to("public") if served else None,
            php=True,
            wordpress=site.type is SiteType.WORDPRESS,
            force_https=site.force_https,
            redirects=(),
        )
        for one in judge(parse(file["text"]), situation):
            if one.opinion.verdict is Verdict.BLOCKS:
                blocking.append(f"{path}:{one.directive.line}: {one.directive.text} ({one.opinion.reason})"[:300])
    if not answer.result["complete"]:
        blocking.append("not all of the .htaccess files could be read")
    return blocking
