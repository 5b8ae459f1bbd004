"""Builds the web server's model of a site from its record: the one place that knows what serves each type of site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from pydantic import ValidationError

from svc_actors.certificates import covers
from svc_actors.panel.sites.php import pool_of
from svc_actors.panel.sites.previews import Previews, read_previews
from svc_actors.panel.sites.protected_paths import logins_of_paths, protected_path
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site
from svc_actors.panel.sites.states import SiteStatus, SiteType
from svc_actors.store import Queryable, Record
from svc_common.errors import ServiceError, invalid
from svc_webhost.apps import app_socket
from svc_webhost.certificate_files import CertificateFiles
from svc_webhost.folders import HostFolders
from svc_webhost.nginx import (
    App,
    Certificate,
    FrontController,
    PathRedirect,
    Php,
    Proxy,
    Serves,
    SiteServer,
    Staged,
    StaticRoot,
    Suspended,
    WordPress,
)
from svc_webhost.php import socket_of

STAGING_LOGIN: Final = "staging"
"""The login that goes with a staging copy's password."""
_NO_SERVER: Final = frozenset({SiteStatus.FAILED, SiteStatus.DELETING})


@dataclass(frozen=True)
class Unservable:
    """A site with a record that the web server's model does not accept."""

    number: int
    why: str


@dataclass
class _Having:
    """A site's data outside of its row."""

    names: list[Record] = field(default_factory=list)
    redirects: list[Record] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    protected: dict[str, dict[str, str]] = field(default_factory=dict)
    fronts: list[Record] = field(default_factory=list)
    fingerprint: str | None = None
    certified: list[str] = field(default_factory=list)
    verifier: str | None = None
    """The verifier of a staging copy's password."""


class ServedBy(Protocol):
    """The functions of the web server that sites use."""

    async def change(self, servers: Mapping[int, SiteServer | None]) -> None:
        """Serve these sites, by number, as given; None stops serving one. Raises ServiceError."""
        ...


async def server_of(queryable: Queryable, site: SiteRow, folders: HostFolders) -> SiteServer | None:
    """The server for the site's record; None if the site must not be served. Raises `invalid` if the web server's model
    does not accept the record."""
    for found in await _servers(queryable, [site], folders):
        if isinstance(found, Unservable):
            raise invalid(f"The site {site.domain} cannot be served as it is recorded: {found.why}")
        return found
    return None


async def all_servers(queryable: Queryable, folders: HostFolders) -> tuple[list[SiteServer], dict[int, str]]:
    """The servers of all sites that should be served; and, by site number, why a site cannot be served. Such a site
    does not keep others from being served."""
    rows = await queryable.fetch(f"SELECT {SITE_COLUMNS} FROM sites ORDER BY number")
    found = await _servers(queryable, [as_site(row) for row in rows], folders)
    return (
        [each for each in found if isinstance(each, SiteServer)],
        {each.number: each.why for each in found if isinstance(each, Unservable)},
    )


async def _servers(
    queryable: Queryable, sites: Sequence[SiteRow], folders: HostFolders
) -> list[SiteServer | Unservable]:
    served = [site for site in sites if site.status not in _NO_SERVER]
    ids = [site.id for site in served]
    verifiers = {
        row["copy_id"]: row["verifier"]
        for row in await queryable.fetch("SELECT copy_id, verifier FROM stagings WHERE copy_id = ANY($1)", ids)
    }
    # A staging copy without a password is left out, so that it is not open to everybody.
    served = [site for site in served if site.staging_of is None or site.id in verifiers]
    having = {site.id: _Having(verifier=verifiers.get(site.id)) for site in served}
    ids = list(having)
    for row in await queryable.fetch(
        "SELECT site_id, name, redirect_to_primary FROM site_domains WHERE site_id = ANY($1) ORDER BY name", ids
    ):
        having[row["site_id"]].names.append(row)
    for row in await queryable.fetch(
        "SELECT site_id, path, target, status, below FROM site_redirects WHERE site_id = ANY($1) ORDER BY path, below",
        ids,
    ):
        having[row["site_id"]].redirects.append(row)
    for row in await queryable.fetch(
        "SELECT site_id, pattern FROM site_denied_paths WHERE site_id = ANY($1) ORDER BY pattern", ids
    ):
        having[row["site_id"]].denied.append(row["pattern"])
    for row in await queryable.fetch(
        """SELECT site_id, path, php_file, path_info, parameter, serves_files FROM site_front_controllers
           WHERE site_id = ANY($1) ORDER BY path""",
        ids,
    ):
        having[row["site_id"]].fronts.append(row)
    for site_id, paths in (await logins_of_paths(queryable, ids)).items():
        having[site_id].protected.update(paths)
    for row in await queryable.fetch(
        "SELECT site_id, fingerprint, names FROM site_certificates WHERE site_id = ANY($1)", ids
    ):
        having[row["site_id"]].fingerprint = row["fingerprint"]
        having[row["site_id"]].certified = row["names"]
    previews = await read_previews(queryable, folders)
    return [_checked(site, having[site.id], previews, folders) for site in served]


def _checked(site: SiteRow, has: _Having, previews: Previews, folders: HostFolders) -> SiteServer | Unservable:
    try:
        return _server(site, has, previews, folders)
    except ServiceError as error:
        return Unservable(site.number, error.message)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}".lstrip(": ") for each in error.errors())
        return Unservable(site.number, "; ".join(problems)[:500])
    except ValueError as error:
        return Unservable(site.number, str(error)[:500])


def _server(site: SiteRow, has: _Having, previews: Previews, folders: HostFolders) -> SiteServer:
    others = [row for row in has.names if row["name"] != site.domain]
    aliases = tuple(row["name"] for row in others if not row["redirect_to_primary"])
    return SiteServer(
        number=site.number,
        domain=site.domain,
        aliases=aliases,
        redirects={row["name"]: site.domain for row in others if row["redirect_to_primary"]},
        path_redirects=tuple(
            PathRedirect(source=row["path"], target=row["target"], status=row["status"], below=row["below"])
            for row in has.redirects
        ),
        denied=tuple(has.denied),
        protected=tuple(protected_path(path, logins) for path, logins in has.protected.items()),
        front_controllers=tuple(
            FrontController(**{name: value for name, value in dict(row).items() if name != "site_id"})
            for row in has.fronts
        ),
        serves=_serves(site, folders),
        certificate=_certificate(site, has.fingerprint, folders),
        uncertified=frozenset(
            row["name"] for row in has.names if has.fingerprint is not None and not covers(has.certified, row["name"])
        ),
        force_https=site.force_https,
        cache_assets=site.cache_assets,
        utf8_pages=site.utf8_pages,
        staged=None if has.verifier is None else Staged(login=STAGING_LOGIN, verifier=has.verifier),
        previews=previews.names(site.id, (site.domain, *aliases)),
    )


def _certificate(site: SiteRow, fingerprint: str | None, folders: HostFolders) -> Certificate | None:
    if fingerprint is None:
        return None
    paths = CertificateFiles(folders.certificates).paths(site.number, fingerprint)
    return Certificate(chain=str(paths.chain), key=str(paths.key))


def _serves(site: SiteRow, folders: HostFolders) -> Serves:
    if site.status is SiteStatus.SUSPENDED:
        return Suspended(reason=site.reason or "")
    match site.type:
        case SiteType.STATIC:
            return StaticRoot(root=str(folders.sites / site.account.name / "public"), fallback_page=site.fallback_page)
        case SiteType.PHP:
            root, socket = _php_of(site, folders)
            return Php(root=root, socket=socket, fallback_page=site.fallback_page)
        case SiteType.WORDPRESS:
            root, socket = _php_of(site, folders)
            return WordPress(root=root, socket=socket)
        case SiteType.APP:
            return App(socket=str(app_socket(folders, site.account)))
        case SiteType.PROXY:
            target = urlsplit(site.proxy_target or "")
            tls = target.scheme == "https"
            return Proxy.model_validate(
                {
                    "host": target.hostname,
                    "port": target.port or (443 if tls else 80),
                    "addresses": site.proxy_addresses,
                    "tls": tls,
                }
            )


def _php_of(site: SiteRow, folders: HostFolders) -> tuple[str, str]:
    """The document root, and the socket of the site's PHP."""
    return str(folders.sites / site.account.name / "public"), str(socket_of(pool_of(site), folders))
