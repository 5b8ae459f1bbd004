"""What nginx adds to a site that is a copy to work on: a password, and no place in any search engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from svc_actors.host.nginx.visitors import guesses_bounded, guesses_count

_ROBOTS = r"User-agent: *\nDisallow: /\n"


def staged_rules(passwords: Path) -> Iterator[str]:
    yield from guesses_bounded()
    yield guesses_count()
    yield 'auth_basic "Staging";'
    yield f'auth_basic_user_file "{passwords}";'
    yield 'add_header X-Robots-Tag "noindex, nofollow" always;'
    # Crawlers shall be told, and have no password.
    yield "location = /robots.txt {"
    yield "auth_basic off;"
    yield "default_type text/plain;"
    yield f'return 200 "{_ROBOTS}";'
    yield "}"
    # What is due is done by the site that it is a copy of.
    yield "location = /wp-cron.php {"
    yield "return 404;"
    yield "}"


def challenge_rules() -> Iterator[str]:
    """In the location of what certificate authorities ask for."""
    yield "auth_basic off;"
