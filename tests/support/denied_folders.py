"""Folders that known products put into a site and deny to all visitors by an .htaccess file, with what lies in them.

Read in the products' sources, by repository and path:

    WooCommerce     woocommerce/woocommerce: plugins/woocommerce/includes/class-wc-install.php (create_files)
    UpdraftPlus     wp-plugins/updraftplus: updraftplus.php (backups_dir_location)
    Drupal          drupal/drupal: core/lib/Drupal/Component/FileSecurity/FileSecurity.php (denyPublicAccess)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DENIED: Final = b"deny from all"
_DENIED_ON_ALL: Final = b"""<IfModule mod_authz_core.c>
  Require all denied
</IfModule>
<IfModule !mod_authz_core.c>
  Deny from all
</IfModule>
"""
SECRET: Final = b"for no visitor"

WORDPRESS: Final[Mapping[str, bytes]] = {
    "wp-content/uploads/woocommerce_uploads/.htaccess": _DENIED,
    "wp-content/uploads/woocommerce_uploads/index.html": b"",
    "wp-content/uploads/woocommerce_uploads/2026/01/handbook-x7k2ab.pdf": SECRET,
    "wp-content/uploads/wc-logs/.htaccess": _DENIED,
    "wp-content/uploads/wc-logs/index.html": b"",
    "wp-content/uploads/wc-logs/stripe-2026-01-02-5f3a.txt": SECRET,
    "wp-content/updraft/.htaccess": _DENIED,
    "wp-content/updraft/backup_2026-01-02-0304_Shop-db.gz": SECRET,
}
DRUPAL: Final[Mapping[str, bytes]] = {
    "sites/default/private/.htaccess": _DENIED_ON_ALL,
    "sites/default/private/invoices/2026-01.pdf": SECRET,
}
BLOCKS: Final[Mapping[str, bytes]] = {
    # Translated to nothing: the site is suspended.
    "intern/.htaccess": b"Require ip 192.0.2.0/24\n",
    "intern/salaries.csv": SECRET,
}


def secrets_in(files: Mapping[str, bytes]) -> list[str]:
    """The addresses of what no visitor may get."""
    return [f"/{name}" for name, content in files.items() if content == SECRET]
