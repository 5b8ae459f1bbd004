"""PHP for sites: each has a php-fpm of its own (docs/panel.md)."""

from svc_webhost.php.extensions import Extension
from svc_webhost.php.masters import PhpError, PhpMasters, PhpServing
from svc_webhost.php.pool import Pool, number_of, pool_service, render_pool, socket_of
from svc_webhost.php.settings import ErrorReporting, PhpSettings, PhpVersion

__all__ = [
    "ErrorReporting",
    "Extension",
    "PhpError",
    "PhpMasters",
    "PhpServing",
    "PhpSettings",
    "PhpVersion",
    "Pool",
    "number_of",
    "pool_service",
    "render_pool",
    "socket_of",
]
