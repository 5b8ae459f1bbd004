"""How nginx asks a site's php-fpm, and for which paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from svc_actors.host.nginx.visitors import with_bodies

_FASTCGI: Final = {
    "QUERY_STRING": "$query_string",
    "REQUEST_METHOD": "$request_method",
    "CONTENT_TYPE": "$content_type",
    "CONTENT_LENGTH": "$content_length",
    "SCRIPT_FILENAME": "$document_root$fastcgi_script_name",
    "SCRIPT_NAME": "$fastcgi_script_name",
    "PATH_INFO": "$path_info",
    "REQUEST_URI": "$request_uri",
    "DOCUMENT_URI": "$document_uri",
    "DOCUMENT_ROOT": "$document_root",
    "SERVER_PROTOCOL": "$server_protocol",
    "REQUEST_SCHEME": "$scheme",
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_SOFTWARE": "nginx",
    "REMOTE_ADDR": "$remote_addr",
    "REMOTE_PORT": "$remote_port",
    "SERVER_ADDR": "$server_addr",
    "SERVER_PORT": "$server_port",
    "SERVER_NAME": "$host",
    # The host that chose this server, as a proxied site is told.
    "HTTP_HOST": "$host$svc_port",
    "REDIRECT_STATUS": "200",
    # A header `Proxy` would be taken for the proxy variable of the environment ("httpoxy").
    "HTTP_PROXY": '""',
}

_PROGRAM: Final = "/index.php$is_args$args"
"""Answers for every path that is no file."""
_ENDS: Final = r"(?:/|\z)"
_SOURCE: Final = (
    r"(?i:php(?:[0-9]+|s|~|[._-](?:bak|backup|old|orig|save|sav|swp|swo|tmp|copy|dist|[0-9]+)~?)?|phtml?|pht)"
)
"""Endings of files that hold PHP: those that some host runs, in capitals too, and those of copies that editors and
people leave beside a program. `.php.html` is not among them: mirrors of a site are called so, and hold pages."""
_INCLUDED: Final = "inc"
_ARCHIVE: Final = "phar"
"""These hold PHP too, but paths that are no file end like that as well: `/companies/apple.inc`, `/@acme.inc`."""


def static_rules() -> Iterator[str]:
    """Where nothing runs. A program that was put here is not shown either, but for an archive, which is a download."""
    yield from _never_shown(_SOURCE)
    yield from _never_a_file(_INCLUDED, "=404")


def _never_shown(endings: str) -> Iterator[str]:
    """Programs are never shown as they are written: they hold passwords. Nor is one whose name ends in white space,
    which the rule for what is run does not take for PHP."""
    yield rf'location ~ "(?s)\.{endings}\s*{_ENDS}" {{'
    yield "return 404;"
    yield "}"


def _never_a_file(endings: str, otherwise: str) -> Iterator[str]:
    """The same, only where there is such a file; else what the site answers for a path that is none."""
    yield rf'location ~ "(?s)\.(?i:{endings})\s*\z" {{'
    yield "if (-f $request_filename) {"
    yield "return 404;"
    yield "}"
    yield f"try_files $uri/ {otherwise};"
    yield "}"


def php_rules(socket: str, told: Mapping[str, str]) -> Iterator[str]:
    """`told`: what PHP is told beside that of every site, in words of nginx's configuration."""
    yield "index index.php index.html index.htm;"
    yield "location / {"
    yield f"try_files $uri $uri/ {_PROGRAM};"
    yield "}"
    yield from _never_shown(rf"(?!php{_ENDS}){_SOURCE}")
    yield from _never_a_file(f"{_INCLUDED}|{_ARCHIVE}", _PROGRAM)
    yield from with_bodies(rf'~ "(?s)[^/]\.php{_ENDS}"', list(_run(socket, told)))


def _run(socket: str, told: Mapping[str, str]) -> Iterator[str]:
    yield r'fastcgi_split_path_info "(?s)^(.+?\.php)(/.*)\z";'
    # `try_files` forgets what was split.
    yield "set $path_info $fastcgi_path_info;"
    # Only a file that there is: else `/picture.jpg/x.php` would be run as PHP.
    yield "try_files $fastcgi_script_name =404;"
    yield f'fastcgi_pass "unix:{socket}";'
    for name, value in {**_FASTCGI, **told}.items():
        yield f"fastcgi_param {name} {value};"
    yield "fastcgi_param HTTPS $https if_not_empty;"
    yield "fastcgi_read_timeout 300s;"
