"""Records of a WordPress, in addition to those of its site."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable, Transaction
from svc_webhost.wordpress import WordPressSite

_COLUMNS: Final = "site_id, title, locale, admin_email, admin_login, installed_at"


@dataclass(frozen=True)
class WordPressOrder:
    """The caller's wishes. `locale` is empty for English."""

    title: str
    locale: str
    admin_email: str

    @property
    def admin_login(self) -> str:
        """The local part of the email address: attackers do not try it first, as they do `admin`."""
        login = re.sub(r"[^a-z0-9_.-]", "", self.admin_email.partition("@")[0].lower())[:50]
        return login or "administrator"


@dataclass(frozen=True)
class WordPressRow:
    site_id: UUID
    title: str
    locale: str
    admin_email: str
    admin_login: str
    installed_at: datetime | None


def wordpress_site(site: SiteRow) -> WordPressSite:
    return WordPressSite(site.account, site.domain, site.limits, staged=site.staging_of is not None)


async def read_wordpress(queryable: Queryable, site_id: UUID) -> WordPressRow | None:
    row = await queryable.fetchrow(f"SELECT {_COLUMNS} FROM wordpress_sites WHERE site_id = $1", site_id)
    return None if row is None else WordPressRow(**dict(row))


async def write_order(tx: Transaction, site_id: UUID, order: WordPressOrder) -> None:
    """Store the order for a site that is being created. An installed WordPress keeps its order."""
    await tx.execute(
        """INSERT INTO wordpress_sites (site_id, title, locale, admin_email, admin_login) VALUES ($1, $2, $3, $4, $5)
           ON CONFLICT (site_id) DO UPDATE
           SET title = $2, locale = $3, admin_email = $4, admin_login = $5
           WHERE wordpress_sites.installed_at IS NULL""",
        site_id,
        order.title,
        order.locale,
        order.admin_email,
        order.admin_login,
    )


async def write_installed(tx: Transaction, site_id: UUID) -> None:
    await tx.execute("UPDATE wordpress_sites SET installed_at = now() WHERE site_id = $1", site_id)


async def write_incomplete(tx: Transaction, site_id: UUID) -> None:
    """A part of the WordPress is being removed: creating the site again installs it again."""
    await tx.execute("UPDATE wordpress_sites SET installed_at = NULL WHERE site_id = $1", site_id)


async def write_cron_scheduled(tx: Transaction, site_id: UUID) -> bool:
    """Returns whether it was not scheduled before."""
    scheduled = await tx.fetchval(
        "UPDATE wordpress_sites SET cron_scheduled = true WHERE site_id = $1 AND NOT cron_scheduled RETURNING true",
        site_id,
    )
    return bool(scheduled)


async def write_administrator(tx: Transaction, site_id: UUID, email: str) -> None:
    """Change the administrator's address; the login stays."""
    await tx.execute("UPDATE wordpress_sites SET admin_email = $2 WHERE site_id = $1", site_id, email)
