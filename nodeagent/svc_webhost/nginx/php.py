"""How nginx passes requests to a site's php-fpm, and for which paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from svc_webhost.nginx.visitors import with_bodies

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
    "REQUEST_SCHEME": "$svc_scheme",
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_SOFTWARE": "nginx",
    "REMOTE_ADDR": "$remote_addr",
    "REMOTE_PORT": "$remote_port",
    "SERVER_ADDR": "$svc_server_addr",
    "SERVER_PORT": "$svc_server_port",
    "SERVER_NAME": "$host",
    # The host name with which this server was selected, as for a proxied site.
    "HTTP_HOST": "$host$svc_port",
    "REDIRECT_STATUS": "200",
    # Kanboard, Pagekit, Pico and others ask by these whether short addresses lead to index.php, and do not understand
    # their own short links otherwise. Their .htaccess files set them (`htaccess.variables`).
    "HTTP_MOD_REWRITE": "On",
    "PICO_URL_REWRITING": "1",
    # Otherwise a request header `Proxy` would become the proxy variable of PHP's environment ("httpoxy").
    "HTTP_PROXY": '""',
}

PROGRAM: Final = "/index.php$is_args$args"
"""The program that answers for every path without a file."""
_ENDS: Final = r"(?:/|\z)"
_SOURCE: Final = (
    r"(?i:php(?:[0-9]+|s|~|[._-](?:bak|backup|old|orig|save|sav|swp|swo|tmp|copy|dist|[0-9]+)~?)?|phtml?|pht)"
)
"""Extensions of files that contain PHP code: those that some host runs, in capitals, too, and those of copies that
editors and people leave next to a program. `.php.html` is not among them, because mirrors of a site use it for
pages."""
_INCLUDED: Final = "inc"
_ARCHIVE: Final = "phar"
"""Files with these extensions contain PHP, too. But paths without a file may also end like this:
`/companies/apple.inc`, `/@acme.inc`."""


def static_rules(missing: str) -> Iterator[str]:
    """Rules for sites without programs. PHP files are not served either, except archives, which are downloads.
    `missing`: what answers for a path without a file."""
    yield from _never_shown(_SOURCE)
    yield from _never_a_file(_INCLUDED, missing)


def _never_shown(endings: str) -> Iterator[str]:
    """The source of programs is never shown, as it holds passwords. Nor is the source of a program whose name ends in
    white space, since the rule that runs programs does not match such a name."""
    yield rf'location ~ "(?s)\.{endings}\s*{_ENDS}" {{'
    yield "return 404;"
    yield "}"


def _never_a_file(endings: str, otherwise: str) -> Iterator[str]:
    """As `_never_shown`, but only for existing files; other paths get the site's answer for missing files."""
    yield rf'location ~ "(?s)\.(?i:{endings})\s*\z" {{'
    yield "if (-f $request_filename) {"
    yield "return 404;"
    yield "}"
    yield f"try_files $uri/ {otherwise};"
    yield "}"


def php_rules(socket: str, parameters: Mapping[str, str], missing: str) -> Iterator[str]:
    """`parameters`: further FastCGI parameters for this site, with values in nginx's syntax. `missing`: what answers
    for a path without a file."""
    yield from _never_shown(rf"(?!php{_ENDS}){_SOURCE}")
    yield from _never_a_file(f"{_INCLUDED}|{_ARCHIVE}", missing)
    yield from with_bodies(rf'~ "(?s)[^/]\.php{_ENDS}"', list(_run(socket, parameters)))


def _run(socket: str, parameters: Mapping[str, str]) -> Iterator[str]:
    yield r'fastcgi_split_path_info "(?s)^(.+?\.php)(/.*)\z";'
    # Saved first, because `try_files` resets the split path.
    yield "set $path_info $fastcgi_path_info;"
    # The file must exist: otherwise `/picture.jpg/x.php` would run picture.jpg as PHP.
    yield "try_files $fastcgi_script_name =404;"
    yield f'fastcgi_pass "unix:{socket}";'
    for name, value in {**_FASTCGI, **parameters}.items():
        yield f"fastcgi_param {name} {value};"
    yield "fastcgi_param HTTPS $svc_https if_not_empty;"
    yield "fastcgi_read_timeout 300s;"
