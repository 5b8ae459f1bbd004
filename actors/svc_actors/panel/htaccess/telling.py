"""Applies the wishes of .htaccess lines as settings of the panel, as the owner would: redirects, denied and protected
paths, HTTPS, names and PHP settings.

Existing settings stay: if the same path is already redirected to another URL, this was set on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from svc_actors.panel.sites.claims import set_redirected
from svc_actors.panel.sites.denied_paths import MOST_DENIED, add_denied_path
from svc_actors.panel.sites.php import SitePhp, php_of
from svc_actors.panel.sites.protected_paths import MOST_PROTECTED, protect
from svc_actors.panel.sites.records import SiteRow, change_record
from svc_actors.panel.sites.redirects import MOST_REDIRECTS, add_redirect
from svc_actors.store import Transaction
from svc_webhost.htaccess.verdicts import Denied, HttpsForced, NameRedirected, PhpSet, Protected, Redirected, Wish


async def tell(tx: Transaction, site: SiteRow, wishes: Sequence[Wish]) -> list[str]:
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
    settings: dict[str, Any] = {}
    for wish in dict.fromkeys(wishes):
        match wish:
            case Redirected(path, target, status, below):
                if (path, below) in redirected or len(redirected) >= MOST_REDIRECTS:
                    continue
                await add_redirect(tx, site, path, target, status, below=below)
                redirected.add((path, below))
                told.append(f"a redirect of {path}{' and all below it' if below else ''} to {target}")
            case Denied(pattern):
                if pattern in denied or len(denied) >= MOST_DENIED:
                    continue
                await add_denied_path(tx, site, pattern)
                denied.add(pattern)
                told.append(f"visitors are refused {pattern}")
            case Protected(path, logins):
                if path in protected or len(protected) >= MOST_PROTECTED:
                    continue
                await protect(tx, site, path, dict(logins))
                protected.add(path)
                told.append(f"{path} asks for a password; logins brought: {len(logins)}")
            case HttpsForced():
                await change_record(tx, site, {"force_https": True})
                told.append("visitors are sent to HTTPS")
            case NameRedirected(name):
                await set_redirected(tx, site, name, True)
                told.append(f"visitors of {name} are sent to {site.domain}")
            case PhpSet(setting, value):
                settings[setting] = value
                told.append(f"PHP has {setting} {value}")
    if settings:
        php = php_of(site).record
        php["settings"] |= settings
        await change_record(tx, site, {"php": SitePhp.model_validate(php).record})
    return told
