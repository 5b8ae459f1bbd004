"""nginx's rules for paths of a WordPress that visitors may not open: mostly those that attack programs try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_NOTHING: Final = (
    # Also the copies that editors leave: wp-config.php~, wp-config.php.bak. And those of a second WordPress in a
    # folder.
    r"~* /wp-config(?:-sample)?\.php",
    # One request to it can try hundreds of passwords.
    r"~* /xmlrpc\.php(?:/|\z)",
    # Uploads are shown but never run: a form for pictures that accepts a program must not lead to its execution.
    r"~* ^/wp-content/(?:uploads|upgrade|languages)/.*\.(?:php[0-9]?|phps|phtml?|phar|pht)\.?(?:/|\z)",
    # Programs of other kinds are not shown there, either; Wordfence denies them with those of PHP.
    r"~* ^/wp-content/uploads/.*\.(?:pl|py|jsp|asp|htm|shtml|sh|cgi)\z",
    # WP_DEBUG_LOG, and database dumps that were written into the site.
    r"~* ^/wp-content/.*\.(?:log|sql)(?:\.[a-z0-9]+)?\z",
    r"~* /debug\.log\z",
    # Parts of its programs, which are included and never requested.
    r"~* ^/wp-admin/includes/",
    r"~* ^/wp-includes/(?:[^/]+\.php(?:/|\z)|js/tinymce/langs/.+\.php|theme-compat/)",
    # Creates an administrator if the database is empty.
    r"~* ^/wp-admin/(?:install|setup-config)\.php(?:/|\z)",
    # They reveal the versions of WordPress and of its extensions.
    r"~* /(?:readme|license|liesmich|licencia)\.(?:html|txt)\z",
)


def wordpress_rules() -> Iterator[str]:
    for match in _NOTHING:
        # In quotes, as a brace would open a block; `.` is every character, including a line feed in a name.
        operator, _, expression = match.partition(" ")
        yield f'location {operator} "(?s){expression}" {{'
        yield "return 404;"
        yield "}"
