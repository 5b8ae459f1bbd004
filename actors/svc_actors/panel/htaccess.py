"""A site's .htaccess files: judged, given the site's current configuration, and applied as settings of the panel.

A tenant writes these files, so the helper of the site's files judges them (`confined.judge`). Its result is data. What
the lines ask for is set as the owner would: redirects, denied and protected paths, front controllers, HTTPS, names, the
fallback page, character sets and PHP settings.
Existing settings stay: a redirect of the same path to elsewhere was set on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from svc_actors.panel.files import site_folder
from svc_actors.panel.sites.claims import set_redirected
from svc_actors.panel.sites.denied_paths import MOST_DENIED, add_denied_path
from svc_actors.panel.sites.front_controllers import MOST_FRONT_CONTROLLERS, add_front_controller
from svc_actors.panel.sites.php import PHP_TYPES, SitePhp, php_of
from svc_actors.panel.sites.protected_paths import MOST_PROTECTED, protect, protections_of
from svc_actors.panel.sites.records import SiteRow, change_record
from svc_actors.panel.sites.redirects import MOST_REDIRECTS, add_redirect
from svc_actors.panel.sites.states import SiteType
from svc_actors.store import Queryable, Transaction
from svc_common.errors import unavailable
from svc_webhost.accepted import is_fallback_page
from svc_webhost.confined.protocol import PARSING_SECONDS, JudgeHtaccess
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders
from svc_webhost.htaccess.verdicts import (
    NOT_ALL_READ,
    Denied,
    FallbackPage,
    Fronted,
    HttpsForced,
    NameRedirected,
    PhpSet,
    Protected,
    Redirected,
    Utf8Pages,
    Verdict,
    Wish,
    in_words,
    line_in_words,
)
from svc_webhost.nginx import FrontController

_SERVED: Final = (*PHP_TYPES, SiteType.STATIC)
"""Types of sites whose files nginx serves; for sites of other types it serves none."""
_WISHES: Final[dict[str, TypeAdapter[Wish]]] = {
    wish.__name__: TypeAdapter(wish)
    for wish in (Redirected, Denied, Protected, HttpsForced, NameRedirected, PhpSet, FallbackPage, Utf8Pages, Fronted)
}

_FRONT: Final = "path, php_file, path_info, parameter, serves_files"


@dataclass(frozen=True)
class PasswordsAt:
    """Where in the site the imported password file of a path is, and its name on the old host."""

    file: str
    named: str


@dataclass(frozen=True)
class JudgedLine:
    """`wishes`: settings of the panel that turn this blocking line into a TRANSLATED one; none if no settings can."""

    line: int
    text: str
    verdict: Verdict
    reason: str
    wishes: tuple[Wish, ...]


@dataclass(frozen=True)
class JudgedFile:
    """`path` from the site's home."""

    path: PurePosixPath
    lines: list[JudgedLine]


@dataclass(frozen=True)
class JudgedFiles:
    """`complete`: no file is missing, and each was read whole."""

    files: list[JudgedFile]
    complete: bool

    @property
    def blocking(self) -> Iterator[tuple[PurePosixPath, JudgedLine]]:
        for file in self.files:
            for line in file.lines:
                if line.verdict is Verdict.BLOCKS:
                    yield file.path, line


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    line: int
    text: str
    verdict: Verdict
    reason: str
    wishes: list[dict[str, Any]]

    def judged(self) -> JudgedLine:
        return JudgedLine(self.line, self.text, self.verdict, self.reason, tuple(map(_wish, self.wishes)))


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    lines: list[_Line]


_FILES: Final = TypeAdapter(list[_File])


async def judged_files(
    files: ConfinedFiles,
    folders: HostFolders,
    queryable: Queryable,
    site: SiteRow,
    passwords: Mapping[str, PasswordsAt | str] | None = None,
    root: str = "",
) -> JudgedFiles:
    """`passwords`, for an imported site: for each path, the imported password file, or why there is none. `root`: a
    folder of the site that is judged as if it were the site's home. Raises `ServiceError` if the files cannot be read
    and judged."""
    order = {
        "served": site.type in _SERVED,
        "situation": await _situation(queryable, site),
        "passwords": None if passwords is None else {path: _told(each) for path, each in passwords.items()},
    }
    answer = await files.ask(
        site_folder(folders, site), JudgeHtaccess(root), json.dumps(order).encode(), seconds=PARSING_SECONDS
    )
    try:
        judged = [
            JudgedFile(PurePosixPath(file.path), [line.judged() for line in file.lines])
            for file in _FILES.validate_json(answer.payload)
        ]
    except (ValidationError, KeyError) as error:
        raise unavailable("The process that analyses .htaccess files gave no readable answer.") from error
    return JudgedFiles(judged, bool(answer.result["complete"]))


def _told(passwords: PasswordsAt | str) -> dict[str, str]:
    if isinstance(passwords, str):
        return {"problem": passwords}
    return {"file": passwords.file, "named": passwords.named}


def _wish(told: dict[str, Any]) -> Wish:
    """Converts data of the helper into a wish. The kind is data, too: an unknown kind is a KeyError."""
    return _WISHES[told["wish"]].validate_python({name: value for name, value in told.items() if name != "wish"})


async def _situation(queryable: Queryable, site: SiteRow) -> dict[str, Any]:
    """The site's part of `svc_webhost.htaccess.situation.Situation`, whatever the folder."""
    redirects = await queryable.fetch(
        "SELECT path, target, status, below FROM site_redirects WHERE site_id = $1", site.id
    )
    names = await queryable.fetch("SELECT name, redirect_to_primary FROM site_domains WHERE site_id = $1", site.id)
    denied = await queryable.fetch("SELECT pattern FROM site_denied_paths WHERE site_id = $1", site.id)
    fronts = await queryable.fetch(f"SELECT {_FRONT} FROM site_front_controllers WHERE site_id = $1", site.id)
    protected = await protections_of(queryable, site.id)
    return {
        "php": site.type in PHP_TYPES,
        "wordpress": site.type is SiteType.WORDPRESS,
        "force_https": site.force_https,
        "fallback_page": site.fallback_page,
        "utf8_pages": site.utf8_pages,
        "redirects": [[row["path"], row["target"], row["status"], row["below"]] for row in redirects],
        "fronts": [dict(row) for row in fronts],
        "denied": [row["pattern"] for row in denied],
        "protected": {each.path: list(each.logins) for each in protected},
        "domain": site.domain,
        "names": {row["name"]: row["redirect_to_primary"] for row in names if row["name"] != site.domain},
        "settings": php_of(site).settings.model_dump(mode="json") if site.type in PHP_TYPES else None,
    }


async def blocking_lines(
    files: ConfinedFiles,
    folders: HostFolders,
    queryable: Queryable,
    site: SiteRow,
    passwords: Mapping[str, PasswordsAt | str] | None = None,
    root: str = "",
) -> list[str]:
    """The lines, each with its place and the reason. `passwords` and `root` as in `judged_files`."""
    judged = await judged_files(files, folders, queryable, site, passwords, root)
    blocking = [line_in_words(str(path), one.line, one.text, one.reason) for path, one in judged.blocking]
    if not judged.complete:
        blocking.append(NOT_ALL_READ)
    return blocking


async def apply_wishes(tx: Transaction, site: SiteRow, wishes: Sequence[Wish]) -> list[str]:
    """Returns what was set, in words; the site's row is locked."""
    told: list[str] = []
    rows = await tx.fetch("SELECT path, below FROM site_redirects WHERE site_id = $1", site.id)
    redirected = {(row["path"], row["below"]) for row in rows}
    denied = {
        row["pattern"] for row in await tx.fetch("SELECT pattern FROM site_denied_paths WHERE site_id = $1", site.id)
    }
    protected = {
        row["path"] for row in await tx.fetch("SELECT path FROM site_protected_paths WHERE site_id = $1", site.id)
    }
    fronts = {
        row["path"] for row in await tx.fetch("SELECT path FROM site_front_controllers WHERE site_id = $1", site.id)
    }
    settings: dict[str, Any] = {}
    page = site.fallback_page
    for wish in dict.fromkeys(wishes):
        match wish:
            case Redirected(path, target, status, below):
                if (path, below) in redirected or len(redirected) >= MOST_REDIRECTS:
                    continue
                await add_redirect(tx, site, path, target, status, below=below)
                redirected.add((path, below))
            case Denied(pattern):
                if pattern in denied or len(denied) >= MOST_DENIED:
                    continue
                await add_denied_path(tx, site, pattern)
                denied.add(pattern)
            case Protected(path, logins):
                if path in protected or len(protected) >= MOST_PROTECTED:
                    continue
                await protect(tx, site, path, dict(logins))
                protected.add(path)
            case Fronted(path):
                if path in fronts or len(fronts) >= MOST_FRONT_CONTROLLERS:
                    continue
                await add_front_controller(tx, site, FrontController.model_validate(asdict(wish)))
                fronts.add(path)
            case HttpsForced():
                await change_record(tx, site, {"force_https": True})
            case FallbackPage(path):
                if page is not None or not is_fallback_page(path):
                    continue
                page = path
                await change_record(tx, site, {"fallback_page": path})
            case Utf8Pages():
                await change_record(tx, site, {"utf8_pages": True})
            case NameRedirected(name):
                await set_redirected(tx, site, name, True)
            case PhpSet(setting, value):
                settings[setting] = value
        told.append(in_words(wish, site.domain))
    if settings:
        php = php_of(site).record
        php["settings"] |= settings
        await change_record(tx, site, {"php": SitePhp.model_validate(php).record})
    return told
