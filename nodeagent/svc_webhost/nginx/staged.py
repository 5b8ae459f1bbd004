"""nginx's additions for a staging copy: a password, and no place in search engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from svc_webhost.nginx.visitors import guesses_bounded, guesses_count

_ROBOTS = r"User-agent: *\nDisallow: /\n"


def staged_rules(passwords: Path) -> Iterator[str]:
    yield from guesses_bounded()
    yield guesses_count()
    yield 'auth_basic "Staging";'
    yield f'auth_basic_user_file "{passwords}";'
    yield 'add_header X-Robots-Tag "noindex, nofollow" always;'
    # Crawlers have no password, but must be able to read robots.txt.
    yield "location = /robots.txt {"
    yield "auth_basic off;"
    yield "default_type text/plain;"
    yield f'return 200 "{_ROBOTS}";'
    yield "}"
    # Due tasks are run by the live site only.
    yield "location = /wp-cron.php {"
    yield "return 404;"
    yield "}"


def challenge_rules() -> Iterator[str]:
    """In the location of challenges by certificate authorities."""
    yield "auth_basic off;"
