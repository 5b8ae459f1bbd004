"""Recognises applications by their files: WordPress, whose configuration is rewritten, and others, which are only
named."""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.archives.model import FoundSite, Survey
from svc_webhost.archives.wpconfig import database_of

CONFIGURATIONS: Final = re.compile(
    r"(?:.*/)?(?:wp-config\.php|configuration\.php|\.env|sites/default/settings\.php|app/etc/env\.php"
    r"|app/config/parameters\.php|config/settings\.inc\.php|LocalSettings\.php|typo3conf/LocalConfiguration\.php)"
)
_NAMES: Final = {
    "configuration.php": "Joomla",
    ".env": "Laravel, Symfony or another that reads .env",
    "sites/default/settings.php": "Drupal",
    "app/etc/env.php": "Magento",
    "app/config/parameters.php": "PrestaShop",
    "config/settings.inc.php": "PrestaShop",
    "LocalSettings.php": "MediaWiki",
    "typo3conf/LocalConfiguration.php": "TYPO3",
}


def describe(survey: Survey, site: FoundSite) -> None:
    """Record the applications found in the site's files."""
    files, size = survey.folders.get(site.root, (0, 0))
    for other in site.without:
        inner = survey.folders.get(other, (0, 0))
        files, size = files - inner[0], size - inner[1]
    site.files, site.size = files, size
    above = site.root.rpartition("/")[0]
    for path in (f"{site.root}/wp-config.php", f"{above}/wp-config.php".lstrip("/")):
        if path in survey.texts and f"{site.root}/wp-load.php" in survey.marks:
            site.wordpress, site.database = path, database_of(survey.texts[path])
            break
    for name, program in _NAMES.items():
        for folder in (site.root, *site.home, *([above] if name == ".env" else [])):
            if f"{folder}/{name}" in survey.marks:
                site.applications.append(f"{folder}/{name} ({program})")
