"""What one visitor may hold of nginx, in words of its configuration: requests, bodies on their way, and tries of
passwords. A visitor is an address, of IPv6 a /64, which is the least that one subscriber has.

nginx counts a request once its header is there; connections whose header is not are bounded where they come in
(`svc_actors.host.visitors`). A body is kept in a file until it is whole, so how many there may be bounds bytes on the
disk: those of 10 MB and more, or of a length that is not said, and the smaller ones, each by visitor and by site. What
of an answer is not read yet is on the disk too, as much of each request (`ANSWER_BYTES`).

HTTP/2 lets any request have a body whose length nobody said, and nothing tells it from one without. So requests of the
methods that upload nothing, which are all but POST, PUT and PATCH, have a body of 64 KB at most where its length is not
said; nginx has no such bound by method, and they are answered by a location of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

REQUESTS: Final = 1024
"""Of a visitor at once; a stream of HTTP/2 is one. A content delivery network comes by few addresses."""
LARGE_BODIES: Final = 8
"""Of a visitor at once: 4 GiB. Programs that upload in parts send some six at a time."""
LARGE_BODIES_OF_SITE: Final = 24
SMALL_BODIES: Final = 64
SMALL_BODIES_OF_SITE: Final = 256
_WITHOUT_LENGTH: Final = "64k"
ANSWER_BYTES: Final = 4 << 20
"""Of an answer that a visitor reads more slowly than the site gives it: nginx keeps so much in a file, and takes more
once it was read. Without a bound that is 1 GiB. The program of the site waits meanwhile, so most answers should fit."""
GUESSES: Final = "$svc_guess"
_GUESSES_A_SECOND: Final = 50
_GUESSES_AT_ONCE: Final = 1000
_GUESSES_UNDELAYED: Final = 300
"""Requests that succeed count too: a browser sends the password with each file of a page. Comparing one costs some 3 ms
at most (`svc_actors.host.apache.passwords`), so one address has 15 % of a worker, which serves all sites, and a second
of it at once. What comes above that waits for its turn, and is refused where too many wait."""


def visitor_bounds() -> Iterator[str]:
    """Of all sites. In the expressions `.` is a byte."""
    yield from (
        "client_header_timeout 20s;",
        "client_body_timeout 30s;",
        f"fastcgi_max_temp_file_size {ANSWER_BYTES};",
        f"proxy_max_temp_file_size {ANSWER_BYTES};",
        "limit_conn_status 429;",
        "limit_req_status 429;",
        # Else who is refused fills the log of the site.
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
    """Of a site that asks for passwords."""
    yield f"limit_req zone=svc_guesses burst={_GUESSES_AT_ONCE} delay={_GUESSES_UNDELAYED};"
    yield f'set {GUESSES} "";'


def guesses_count() -> str:
    """Where a password is compared: a request that brings one is a try."""
    return f"set {GUESSES} $svc_guessing;"


def with_bodies(place: str, answers: Sequence[str]) -> Iterator[str]:
    """The location of `place`, which reads bodies, and the one for requests whose body may have any length unsaid."""
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
