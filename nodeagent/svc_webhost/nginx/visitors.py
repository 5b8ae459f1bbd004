"""Limits on one visitor's share of nginx: concurrent requests, uploads in progress, and password attempts. A visitor is
an IPv4 address or an IPv6 /64, the least that one subscriber has.

nginx counts a request once its header is complete; connections without one are limited when they come in
(`svc_webhost.visitors`). A body is kept in a file until it is complete, so limiting their number limits bytes on
the disk: large ones (10 MB and more, or of unknown length) and small ones, each by visitor and by site. The unread part
of an answer is on the disk as well, up to `ANSWER_BYTES` per request.

In HTTP/2 any request can have a body of unknown length, and looks like one without a body. So requests by methods other
than POST, PUT and PATCH, which upload nothing, may have at most 64 KB of such a body; nginx has no such limit by
method, and they are answered by a location of their own.

Why: docs/decisions/0042-bounds-on-visitors.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

REQUESTS: Final = 1024
"""The most concurrent requests per visitor; an HTTP/2 stream counts as one. A content delivery network uses few
addresses."""
LARGE_BODIES: Final = 8
"""The most concurrent large bodies per visitor: 4 GiB together. Programs that upload in parts send some six at a
time."""
LARGE_BODIES_OF_SITE: Final = 24
SMALL_BODIES: Final = 64
SMALL_BODIES_OF_SITE: Final = 256
_WITHOUT_LENGTH: Final = "64k"
ANSWER_BYTES: Final = 4 << 20
"""The most bytes of an answer that nginx keeps in a file if the visitor reads it more slowly than the site produces it;
nginx continues once these are read. The default is 1 GiB. The site's program has to wait meanwhile, so most answers
should fit."""
GUESSES: Final = "$svc_guess"
_GUESSES_A_SECOND: Final = 50
_GUESSES_AT_ONCE: Final = 1000
_GUESSES_UNDELAYED: Final = 300
"""Successful requests count, too: a browser sends the password with each file of a page. Checking one costs at most
some 3 ms (`svc_webhost.apache.passwords`), so one address can use 15 % of a worker, which serves all sites, and a
second of it at once. Requests beyond that are delayed, and refused if too many wait."""


def visitor_bounds() -> Iterator[str]:
    """Directives that limit visitors of all sites. In these expressions `.` is a byte."""
    yield from (
        "client_header_timeout 20s;",
        "client_body_timeout 30s;",
        f"fastcgi_max_temp_file_size {ANSWER_BYTES};",
        f"proxy_max_temp_file_size {ANSWER_BYTES};",
        "limit_conn_status 429;",
        "limit_req_status 429;",
        # Logged at a lower level, so that refused requests do not fill the site's log.
        "limit_conn_log_level notice;",
        "limit_req_log_level notice;",
        "map $binary_remote_addr $svc_visitor {",
        r'"~(?s)^(?<svc_network>.{8}).{8}\z" $svc_network;',
        "default $binary_remote_addr;",
        "}",
        'map "$http_content_length/$http_transfer_encoding/$server_protocol/$request_method" $svc_body {',
        r'"~^0*[1-9][0-9]{7}" large;',
        r'"~^0*[1-9]" small;',
        r'"~^[^/]*/[^/]" large;',
        r'"~^//HTTP/2[^/]*/(?:POST|PUT|PATCH)\z" large;',
        r'"~^//HTTP/2" unsaid;',
        'default "";',
        "}",
        "limit_conn_zone $svc_visitor zone=svc_visitors:10m;",
        f"limit_conn svc_visitors {REQUESTS};",
    )
    for size, of_visitor, of_site in (
        ("large", LARGE_BODIES, LARGE_BODIES_OF_SITE),
        ("small", SMALL_BODIES, SMALL_BODIES_OF_SITE),
    ):
        for whose, most in (("visitor", of_visitor), ("server_name", of_site)):
            name = f"svc_{size}_{whose}"
            value = f"$svc_{whose}" if whose == "visitor" else f"${whose}"
            yield from (f"map $svc_body ${name} {{", f"{size} {value};", 'default "";', "}")
            yield f"limit_conn_zone ${name} zone={name}:2m;"
            yield f"limit_conn {name} {most};"
    yield from (
        "map $http_authorization $svc_guessing {",
        '"" "";',
        "default $svc_visitor;",
        "}",
        f"limit_req_zone {GUESSES} zone=svc_guesses:10m rate={_GUESSES_A_SECOND}r/s;",
    )


def guesses_bounded() -> Iterator[str]:
    """Directives that limit password guesses, for a site that asks for passwords."""
    yield f"limit_req zone=svc_guesses burst={_GUESSES_AT_ONCE} delay={_GUESSES_UNDELAYED};"
    yield f'set {GUESSES} "";'


def guesses_count() -> str:
    """A directive for locations that check a password: a request with a password counts as a guess."""
    return f"set {GUESSES} $svc_guessing;"


def with_bodies(place: str, answers: Sequence[str]) -> Iterator[str]:
    """The location `place`, which accepts bodies, and another one for requests whose body may have any unknown
    length."""
    yield f"location {place} {{"
    yield 'if ($svc_body = "unsaid") {'
    yield "return 418;"
    yield "}"
    yield "error_page 418 = @svc_unsaid;"
    yield from answers
    yield "}"
    yield "location @svc_unsaid {"
    yield f"client_max_body_size {_WITHOUT_LENGTH};"
    yield from answers
    yield "}"
