"""The .htaccess files of a site as they are, each judged for the site as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from svc_actors.host.apache.htaccess import parse
from svc_actors.host.apache.links import link_around, reachable
from svc_actors.host.apache.passwords import PasswordFile
from svc_actors.host.confined.protocol import Find
from svc_actors.host.confined_client import ConfinedFiles
from svc_actors.host.folders import HostFolders
from svc_actors.panel.files import site_folder
from svc_actors.panel.htaccess.judging import Judged, judge
from svc_actors.panel.htaccess.situation import INDEXES, Situation
from svc_actors.panel.htaccess.verdicts import Redirected, Verdict
from svc_actors.panel.sites.php import PHP_TYPES, php_of
from svc_actors.panel.sites.protected_paths import protections_of
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteType
from svc_actors.store import Queryable

_NAME: Final = ".htaccess"
_MOST_BYTES: Final = 256 << 10
_SEARCH_SECONDS: Final = 60.0
_SERVED: Final = (*PHP_TYPES, SiteType.STATIC)
"""Of the other types nginx serves no file."""


@dataclass(frozen=True)
class JudgedFile:
    """`path` from the site's home."""

    path: PurePosixPath
    lines: list[Judged]


@dataclass(frozen=True)
class JudgedFiles:
    """`complete`: that are all, and each was read whole."""

    files: list[JudgedFile]
    complete: bool

    @property
    def blocking(self) -> Iterator[tuple[PurePosixPath, Judged]]:
        for file in self.files:
            for line in file.lines:
                if line.opinion.verdict is Verdict.BLOCKS:
                    yield file.path, line


class _Found(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    text: str


_FOUND: Final = TypeAdapter(list[_Found])


async def judged_files(
    files: ConfinedFiles,
    folders: HostFolders,
    queryable: Queryable,
    site: SiteRow,
    passwords: Mapping[str, PasswordFile | str] | None = None,
) -> JudgedFiles:
    """`passwords` of a site that is imported: by path, those that came along, or why none can be had. Raises
    `ServiceError` where the files cannot be read."""
    find = Find("", _NAME, _MOST_BYTES, list(INDEXES))
    answer = await files.ask(site_folder(folders, site), find, seconds=_SEARCH_SECONDS)
    situation = replace(await _situation(queryable, site), indexes=_indexes(answer.result["folders"]))
    links = reachable(answer.result["links"]) if site.type in _SERVED else []
    return JudgedFiles(
        [
            JudgedFile(
                path,
                judge(
                    parse(found.text),
                    _of_folder(situation, _visited(path.parent, site), link_around(path.parent, links), passwords),
                ),
            )
            for found in _FOUND.validate_json(answer.payload)
            for path in [PurePosixPath(found.path)]
        ],
        bool(answer.result["complete"]),
    )


def _of_folder(
    situation: Situation,
    folder: PurePosixPath | None,
    around: str | None,
    passwords: Mapping[str, PasswordFile | str] | None,
) -> Situation:
    here = replace(situation, folder=folder, around=around)
    return here if passwords is None else replace(here, passwords=passwords.get(here.path, "no passwords came along"))


async def _situation(queryable: Queryable, site: SiteRow) -> Situation:
    redirects = await queryable.fetch(
        "SELECT path, target, status, below FROM site_redirects WHERE site_id = $1", site.id
    )
    names = await queryable.fetch("SELECT name, redirect_to_primary FROM site_domains WHERE site_id = $1", site.id)
    denied = await queryable.fetch("SELECT pattern FROM site_denied_paths WHERE site_id = $1", site.id)
    protected = await protections_of(queryable, site.id)
    return Situation(
        folder=None,
        php=site.type in PHP_TYPES,
        wordpress=site.type is SiteType.WORDPRESS,
        force_https=site.force_https,
        redirects=tuple(Redirected(row["path"], row["target"], row["status"], row["below"]) for row in redirects),
        denied=frozenset(row["pattern"] for row in denied),
        protected={each.path: frozenset(each.logins) for each in protected},
        domain=site.domain,
        names={row["name"]: row["redirect_to_primary"] for row in names if row["name"] != site.domain},
        settings=php_of(site).settings if site.type in PHP_TYPES else None,
    )


def _visited(folder: PurePosixPath, site: SiteRow) -> PurePosixPath | None:
    """The folder as visitors ask for it; None where they cannot."""
    served = site.type in _SERVED and folder.parts[:1] == ("public",)
    return folder.relative_to("public") if served else None


def _indexes(folders: dict[str, list[str]] | None) -> dict[PurePosixPath, frozenset[str]] | None:
    if folders is None:
        return None
    paths = {PurePosixPath(folder): frozenset(names) for folder, names in folders.items()}
    return {path.relative_to("public"): names for path, names in paths.items() if path.parts[:1] == ("public",)}
