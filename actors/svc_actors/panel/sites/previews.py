"""Preview addresses of sites: names below the preview domain, a setting, computed from the site's records alone.

So every site has its preview as soon as it exists, and no row of a preview can be missing or left over.

Why: docs/decisions/0059-preview-addresses.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.sites.names import SiteName, is_below, site_name
from svc_actors.panel.web_server import WebServer
from svc_actors.store import Database, Queryable
from svc_common.errors import conflict
from svc_webhost.folders import HostFolders
from svc_webhost.preview_certificate import preview_certificate

ROUND_SECONDS: Final = 2.0
LONGEST_DOMAIN: Final = 253 - 64
"""The longest name below which previews have room: a label has up to 63 characters, and a dot."""
_LONGEST_LABEL: Final = 63
_TOKEN: Final = 12
"""Hexadecimal digits that nobody can guess who does not know the site's id."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.previews")


@dataclass(frozen=True)
class Previews:
    """`domain`: the name below which the sites have their preview names; None: they have none. `fingerprint`: that of
    the certificate for all preview names; None: they are served by HTTP."""

    domain: str | None = None
    fingerprint: str | None = None

    @property
    def tls(self) -> bool:
        return self.fingerprint is not None

    def names(self, site_id: UUID, names: Iterable[str]) -> dict[str, str]:
        """The preview names of these names of a site, and what each one shows."""
        return {} if self.domain is None else {preview_name(site_id, name, self.domain): name for name in names}


def preview_name(site_id: UUID, name: str, domain: str) -> str:
    """The preview name of one name of a site: `shop.example.org` is `shop-example-org-0a1b2c3d4e5f.DOMAIN`. Dashes are
    not repeated, since `xn--` starts the form of a name in other scripts, which this label is not."""
    words = re.sub("-+", "-", name.replace(".", "-"))[: _LONGEST_LABEL - 1 - _TOKEN].rstrip("-")
    return f"{words}-{sha256(f'{site_id}/{name}'.encode()).hexdigest()[:_TOKEN]}.{domain}"


async def read_preview_domain(queryable: Queryable) -> str | None:
    return await queryable.fetchval("SELECT value #>> '{}' FROM settings WHERE name = 'preview_domain'") or None


async def read_previews(queryable: Queryable, folders: HostFolders) -> Previews:
    domain = await read_preview_domain(queryable)
    if domain is None:
        return Previews()
    certificate = await trio.to_thread.run_sync(preview_certificate, folders)
    if certificate is None or certificate.domain != domain:
        return Previews(domain)
    return Previews(domain, certificate.fingerprint)


async def require_no_preview(queryable: Queryable, owner_id: UUID, names: Sequence[SiteName]) -> None:
    """Raises `conflict` for a name that is the preview domain or below it; and for one next to it, unless its owner is
    an administrator: a site there could set cookies that browsers send to the previews of others."""
    domain = await read_preview_domain(queryable)
    if domain is None:
        return
    if taken := [name.name for name in names if is_below(name.name, domain)]:
        raise conflict(
            f"{taken[0]} is a name for previews of sites, which are below {domain}; nothing was changed.",
            hint="Give another domain.",
        )
    registrable = site_name(domain).registrable
    next_to_it = [name.name for name in names if name.registrable == registrable]
    if next_to_it and not await queryable.fetchval(
        "SELECT true FROM users WHERE id = $1 AND role = 'administrator'", owner_id
    ):
        raise conflict(
            f"{next_to_it[0]} is in {registrable}, the provider's domain for previews of sites; nothing was changed.",
            hint="Only administrators have sites there. Give another domain.",
        )


async def require_no_site(queryable: Queryable, domain: SiteName) -> None:
    """Raises `conflict` if a site has a name that keeps `domain` from being the preview domain: the same one, one below
    it, or one of a customer next to it."""
    taken = await queryable.fetchval(
        """
        SELECT named.name
        FROM site_domains AS named JOIN sites ON sites.id = named.site_id JOIN users ON users.id = sites.owner_id
        WHERE named.name = $1 OR named.name LIKE '%.' || $1
           OR (named.registrable = $2 AND users.role <> 'administrator')
        ORDER BY named.name LIMIT 1
        """,
        domain.name,
        domain.registrable,
    )
    if taken is not None:
        raise conflict(
            f"{taken} is the name of a site; nothing was changed.",
            hint="Give a name below which there are no sites, in a domain in which customers have none.",
        )


class ServedPreviews:
    """Has the web server serve the previews according to the settings and their certificate."""

    def __init__(self, database: Database, web_server: WebServer, folders: HostFolders) -> None:
        self._database = database
        self._folders = folders
        self._web_server = web_server
        self._served: Previews | None = None

    async def round(self) -> None:
        """Raises `ServiceError` if the web server does not take them; the next round tries again."""
        previews = await read_previews(self._database, self._folders)
        if previews != self._served:
            # The previews are a part of every site. At the start of the core this changes nothing, since the web server
            # starts with the records.
            await self._web_server.serve_records()
            self._served = previews
            _log.info("previews.served", domain=previews.domain, tls=previews.tls)
