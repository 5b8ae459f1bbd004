"""Lines about variables of Apache, request headers, and modules that nginx does not have: SetEnv, SetEnvIf,
RequestHeader, SSLOptions, mod_security, mod_pagespeed.

A variable that a condition of the file or a program reads may decide anything, so only named ones are known.
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.apache.htaccess import Directive, Lines
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, blocks, harmless, same

_OF_APACHE: Final = re.compile(
    r"no-gzip|gzip-only-text/html|no-brotli|nokeepalive|dont-vary|force-no-vary|ap_trust_cgilike_cl"
    r"|downgrade-1\.0|force-response-1\.0|proxy-[a-z-]+|have_accept-encoding"
)
"""Variables that Apache itself reads: how it compresses, keeps connections, and talks to PHP."""
_SAYS_APACHE: Final = {"modheadersavailable", "htaccessworking", "mod_php"}
"""Nextcloud asks by the first whether Apache sends its headers, and sends them itself where the variable is not set
(OC_Response::addSecurityHeaders); the others are for checks of an installation."""
_SET_HERE: Final = {("http_mod_rewrite", "on"), ("pico_url_rewriting", "1")}
"""Variables that nginx sets as well (`nginx.php`)."""
_AUTHORIZATION: Final = re.compile(r"(?:http_|x)authorization=\$[01]")
_OF_AUTHORIZATION: Final = {"authorization", "^authorization$"}


def environment(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    """SetEnv, SetEnvIf, SetEnvIfNoCase, UnsetEnv, PassEnv."""
    arguments = [argument.lower() for argument in directive.arguments]
    if not arguments:
        return blocks("Apache refuses a file with this line, and serves nothing where it applies.")
    if situation.php and arguments[0] in _OF_AUTHORIZATION and _AUTHORIZATION.fullmatch(arguments[-1]):
        return same("PHP gets the header Authorization.")
    if situation.php and arguments[0] == "authorization" and arguments[-1].startswith("http_authorization="):
        return same("PHP gets the header Authorization.")
    if directive.name == "setenv":
        if _OF_APACHE.fullmatch(arguments[0]):
            return harmless("Only Apache reads this variable.")
        if situation.php and tuple(arguments) in _SET_HERE:
            return same("PHP has this variable.")
        if arguments[0] in _SAYS_APACHE:
            return harmless("It tells the application what Apache does; without it the application does so itself.")
        return blocks("PHP does not have this variable: nginx sets none.")
    if arguments == ["origin", ":", "is_cors"]:
        return harmless("It says whether a page of another site asks; the lines that use it are judged themselves.")
    named = [argument.lstrip("!").partition("=")[0] for argument in arguments[2:]]
    if directive.name.startswith("setenvif") and named and all(map(_OF_APACHE.fullmatch, named)):
        return harmless("Only Apache reads this variable.")
    return blocks("What hangs on this variable is not done by nginx.")


def request_header(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    arguments = [argument.lower() for argument in directive.arguments]
    if arguments == ["unset", "proxy"]:
        return same("PHP is not told of this header.")
    if situation.php and arguments == ["set", "mod_rewrite", "on"]:
        return same("PHP has this variable.")
    if situation.php and arguments == ["set", "xauthorization", "%{xauthorization}e", "env=xauthorization"]:
        return same("PHP gets the header Authorization.")
    if arguments[:2] == ["append", "accept-encoding"] and arguments[-1] == "env=have_accept-encoding":
        return harmless("It repairs a header that some proxies garble, so that the answer is compressed.")
    return blocks("nginx hands on what the visitor sends.")


def switched_off(directive: Directive, *_: object) -> Opinion:
    """A module of Apache that the file switches off, and that nginx does not have."""
    if [argument.lower() for argument in directive.arguments] == ["off"]:
        return same("nginx has nothing of the kind.")
    return blocks("nginx has nothing of the kind.")


def tls_options(directive: Directive, *_: object) -> Opinion:
    if [argument.lower().lstrip("+") for argument in directive.arguments] == ["stdenvvars"]:
        return harmless(
            "PHP knows whether the visitor uses HTTPS; details of the connection are for client certificates."
        )
    return blocks("nginx has nothing of the kind.")
