"""Writes a site's complete wp-config.php: its database, its own salts, and the settings of every site.

Invariant: no value can end the PHP string that it is written into (`_quoted`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from svc_webhost.database_clients import HOST

_SALTS: Final = (
    *("AUTH_KEY", "SECURE_AUTH_KEY", "LOGGED_IN_KEY", "NONCE_KEY"),
    *("AUTH_SALT", "SECURE_AUTH_SALT", "LOGGED_IN_SALT", "NONCE_SALT"),
)


@dataclass(frozen=True)
class SiteDatabase:
    name: str
    user: str
    password: str


def configuration(domain: str, database: SiteDatabase) -> str:
    """A new file: it has new salts, which end all sessions signed with earlier ones."""
    constants = {
        "DB_NAME": _quoted(database.name),
        "DB_USER": _quoted(database.user),
        "DB_PASSWORD": _quoted(database.password),
        "DB_HOST": _quoted(HOST),
        "DB_CHARSET": _quoted("utf8mb4"),
        "DB_COLLATE": _quoted(""),
        **{name: _quoted(salt) for name, salt in new_salts().items()},
        # Without this, everybody with access to the administration pages could edit the code of plugins.
        "DISALLOW_FILE_EDIT": "true",
        "FS_METHOD": _quoted("direct"),
        "WP_DEBUG": "false",
        # Due tasks are run by a schedule of the site.
        "DISABLE_WP_CRON": "true",
    }
    defined = "\n".join(f"define({_quoted(name)}, {value});" for name, value in constants.items())
    return _CONFIGURATION.format(defined=defined, domain=_quoted(domain))


def new_salts() -> dict[str, str]:
    return {name: secrets.token_urlsafe(48) for name in _SALTS}


_CONFIGURATION: Final = """<?php
// Written by the panel when the site was made, and not again: it may be changed.
{defined}

// The address is the one in the visitor's request: the web server accepts no other name. So the site answers under its
// new domain at once, and by HTTPS as soon as it has a certificate. Scheduled tasks have no visitor.
$svc_host = $_SERVER['HTTP_HOST'] ?? {domain};
define('WP_HOME', (PHP_SAPI === 'cli' || ($_SERVER['HTTPS'] ?? '') === 'on' ? 'https://' : 'http://') . $svc_host);
define('WP_SITEURL', WP_HOME);

$table_prefix = 'wp_';

if (!defined('ABSPATH')) {{
    define('ABSPATH', __DIR__ . '/');
}}
require_once ABSPATH . 'wp-settings.php';
"""


def _quoted(text: str) -> str:
    """As a PHP string in single quotes, in which only quote and backslash are special."""
    if "\0" in text:
        raise ValueError("a value of wp-config.php has no NUL")
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
