"""Folders where known products keep what visitors and editors upload: no PHP is run there, unless the owner allows it.

A form for pictures that accepts a program is the usual way into a site. Some products close the folder by an .htaccess
file, others leave it to the web server. So an imported site denies `*.php` in these folders, as nginx does for every
WordPress (`nginx.access`); the plan has an item for each, which can be left out.

The folders are those of the products' own documentation and repositories: joomla/joomla-cms, drupal/drupal,
magento/magento2, laravel/framework, PrestaShop/PrestaShop, opencart/opencart, wikimedia/mediawiki, TYPO3/typo3,
phpbb/phpbb, concretecms/concretecms, contao/contao, WordPress.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from svc_webhost.accepted import is_denied_pattern, no_programs_in
from svc_webhost.archives.model import FoundSite, Survey
from svc_webhost.archives.placing import placed_at

_MOST: Final = 30
"""The most folders of a site: a site has a bounded number of denied paths."""
_MOST_FILES: Final = 500
_PUBLIC: Final = "public"


@dataclass(frozen=True)
class _Product:
    """`known_by`: a file of its own, in its top folder. `uploads`: folders below the document root that is there."""

    name: str
    known_by: str
    uploads: tuple[str, ...]


_PRODUCTS: Final = (
    _Product("WordPress", "wp-load.php", ("wp-content/uploads",)),
    _Product("Joomla", "libraries/src/Version.php", ("images", "media", "tmp")),
    _Product("Joomla", "configuration.php", ("images", "media", "tmp")),
    _Product("Drupal", "core/lib/Drupal.php", ("sites/default/files",)),
    _Product("Drupal", "sites/default/settings.php", ("sites/default/files",)),
    _Product("Magento", "app/etc/env.php", ("media", "pub/media")),
    _Product("Magento", "app/etc/local.xml", ("media", "var")),
    _Product("Laravel", "artisan", ("storage", "public/storage")),
    _Product("PrestaShop", "config/settings.inc.php", ("img", "upload", "download")),
    _Product("PrestaShop", "app/config/parameters.php", ("img", "upload", "download")),
    _Product("OpenCart", "system/startup.php", ("image",)),
    _Product("MediaWiki", "LocalSettings.php", ("images",)),
    _Product("TYPO3", "typo3conf/LocalConfiguration.php", ("fileadmin", "typo3temp", "uploads")),
    _Product("TYPO3", "config/system/settings.php", ("fileadmin", "typo3temp")),
    _Product("phpBB", "viewtopic.php", ("files", "images/avatars")),
    _Product("Concrete CMS", "concrete/dispatcher.php", ("application/files",)),
    _Product("Contao", "system/initialize.php", ("files",)),
)
MARKED: Final = re.compile(rf"(?:.*/)?(?:{'|'.join(re.escape(product.known_by) for product in _PRODUCTS)})")


def product_files(survey: Survey) -> list[tuple[str, _Product]]:
    """The top folders of products in the archive, the outermost first."""
    known = sorted(filter(MARKED.fullmatch, survey.marks), key=lambda path: (path.count("/"), path))
    return [
        (path.removesuffix(product.known_by).rstrip("/"), product)
        for path in known[:_MOST_FILES]
        for product in _PRODUCTS
        if path == product.known_by or path.endswith(f"/{product.known_by}")
    ]


def _inside(folder: str) -> str:
    """The folder below a document root that has another name than the product's own."""
    return folder.removeprefix("public/").removeprefix("pub/")


def uploads_of(site: FoundSite, products: Iterable[tuple[str, _Product]]) -> dict[str, str]:
    """The folders as paths of the site's URL, each with the name of the product."""
    found: dict[str, str] = {}
    around = {site.application, posixpath.dirname(site.root)}
    for top, product in products:
        # The product's own files may lie around the document root: `portal/artisan` and `portal/public`. It may also
        # be another site, in whose document root this one lies.
        is_around = top in around and placed_at(site, f"{top}/{product.known_by}".lstrip("/")) is not None
        for folder in product.uploads:
            for place in (f"{top}/{folder}", *([f"{site.root}/{_inside(folder)}"] if is_around else [])):
                placed = placed_at(site, place.lstrip("/")) or ""
                path = placed.removeprefix(_PUBLIC)
                known = placed.startswith(f"{_PUBLIC}/") and is_denied_pattern(no_programs_in(path))
                if known and len(found) < _MOST:
                    found.setdefault(path, product.name)
    return found
