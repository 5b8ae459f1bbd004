"""What of a WordPress visitors do not get, in words of nginx's configuration: mostly what programs try that look for
sites to take over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_NOTHING: Final = (
    # Also what editors and attempts to save it leave beside it: wp-config.php~, wp-config.php.bak. And of a second
    # WordPress in a folder.
    r"~* /wp-config(?:-sample)?\.php",
    # Passwords are tried by the hundred in one request of it.
    r"~* /xmlrpc\.php(?:/|\z)",
    # What is uploaded is shown, and never run: a form that takes pictures and lets a program through is not one that
    # lets it be started.
    r"~* ^/wp-content/(?:uploads|upgrade|languages)/.*\.(?:php[0-9]?|phps|phtml?|phar|pht)\.?(?:/|\z)",
    # Nor are programs of other kinds shown there, which Wordfence denies with those of PHP.
    r"~* ^/wp-content/uploads/.*\.(?:pl|py|jsp|asp|htm|shtml|sh|cgi)\z",
    # WP_DEBUG_LOG, and copies of the database that were made into the site.
    r"~* ^/wp-content/.*\.(?:log|sql)(?:\.[a-z0-9]+)?\z",
    r"~* /debug\.log\z",
    # Parts of its programs, which others include and nobody asks for.
    r"~* ^/wp-admin/includes/",
    r"~* ^/wp-includes/(?:[^/]+\.php(?:/|\z)|js/tinymce/langs/.+\.php|theme-compat/)",
    # Makes an administrator where the database is empty.
    r"~* ^/wp-admin/(?:install|setup-config)\.php(?:/|\z)",
    # They say which version it is, of it and of what is installed in it.
    r"~* /(?:readme|license|liesmich|licencia)\.(?:html|txt)\z",
)


def wordpress_rules() -> Iterator[str]:
    for match in _NOTHING:
        # In quotes, as a brace would begin a block; `.` is every character, a line feed in a name too.
        operator, _, expression = match.partition(" ")
        yield f'location {operator} "(?s){expression}" {{'
        yield "return 404;"
        yield "}"
