"""The PHP settings in a site's record, and the pool that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteType
from svc_common.errors import invalid, unavailable
from svc_webhost.php import PhpSettings, PhpVersion, Pool

PHP_TYPES: Final = frozenset({SiteType.PHP, SiteType.WORDPRESS})


class SitePhp(BaseModel):
    """The content of a site's column `php`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: PhpVersion
    settings: PhpSettings = PhpSettings()
    restarts: Annotated[int, Field(ge=0)] = 0
    """An increment restarts PHP."""

    @property
    def record(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def php_of(site: SiteRow) -> SitePhp:
    """Raises `ValidationError` if this release does not know the record's form."""
    return SitePhp.model_validate(site.php)


def pool_of(site: SiteRow) -> Pool:
    """The pool of a site of `PHP_TYPES`. Raises `ValidationError`."""
    php = php_of(site)
    staged = site.staging_of is not None
    return Pool(site.account, php.version, php.settings, site.limits, php.restarts, staged)


def newest_version(versions: Sequence[str]) -> str:
    """The version for a new site, from the server's versions, the newest first. Raises `unavailable`."""
    if not versions:
        raise unavailable("This server has no PHP.", hint="An administrator installs php-fpm.")
    return versions[0]


def require_version(version: str, versions: Sequence[str]) -> None:
    """Raises `invalid` if the server does not have the version."""
    if version not in versions:
        there = ", ".join(versions) or "none"
        raise invalid(f"PHP {version} is not installed on this server.", hint=f"It has {there}.")
