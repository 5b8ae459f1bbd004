"""nginx's rules for paths of a WordPress that visitors may not open: mostly those that attack programs try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_NOTHING: Final = (
    # Also copies that editors leave (wp-config.php~, wp-config.php.bak), and those of another WordPress in a subfolder.
    r"~* /wp-config(?:-sample)?\.php",
    # A single request to xmlrpc.php can try hundreds of passwords.
    r"~* /xmlrpc\.php(?:/|\z)",
    # Uploads are shown but never run: if a form for pictures accepts a program, the program must not be run.
    r"~* ^/wp-content/(?:uploads|upgrade|languages)/.*\.(?:php[0-9]?|phps|phtml?|phar|pht)\.?(?:/|\z)",
    # Programs of other kinds are not shown in these folders, either; Wordfence denies them together with those of PHP.
    r"~* ^/wp-content/uploads/.*\.(?:pl|py|jsp|asp|htm|shtml|sh|cgi)\z",
    # The log of WP_DEBUG_LOG, and database dumps that were written into the site.
    r"~* ^/wp-content/.*\.(?:log|sql)(?:\.[a-z0-9]+)?\z",
    r"~* /debug\.log\z",
    # Parts of WordPress's own programs, which are included but never requested.
    r"~* ^/wp-admin/includes/",
    r"~* ^/wp-includes/(?:[^/]+\.php(?:/|\z)|js/tinymce/langs/.+\.php|theme-compat/)",
    # These pages create an administrator if the database is empty.
    r"~* ^/wp-admin/(?:install|setup-config)\.php(?:/|\z)",
    # These files reveal the versions of WordPress and of its plugins and themes.
    r"~* /(?:readme|license|liesmich|licencia)\.(?:html|txt)\z",
)


def wordpress_rules() -> Iterator[str]:
    for match in _NOTHING:
        # The expression is in quotes, because a brace would otherwise open a block. `(?s)`: `.` matches every
        # character, including a line feed in a name.
        operator, _, expression = match.partition(" ")
        yield f'location {operator} "(?s){expression}" {{'
        yield "return 404;"
        yield "}"
