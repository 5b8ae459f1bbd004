"""php_value and php_flag: settings of the site's PHP, if the panel has them.

Only lines at the top of the site and outside of sections become settings: a site has one PHP, while Apache sets a value
for a folder. For a single folder there is .user.ini, which PHP itself reads.
"""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.accepted import EXECUTION_SECONDS, is_setting
from svc_webhost.apache.htaccess import Directive, Lines, modules, narrowing
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, PhpSet, blocks, harmless, same, translated

_MIB: Final = {"memory_limit": "memory_limit_mib", "upload_max_filesize": "upload_max_filesize_mib"}
_NUMBERS: Final = {"max_execution_time": "max_execution_time", "max_input_vars": "max_input_vars"}
# Settings that PHP has removed, or has deprecated since 5.6 (mbstring.http_*).
_NO_MORE: Final = {
    *("magic_quotes_gpc", "magic_quotes_runtime", "magic_quotes_sybase", "register_globals", "register_long_arrays"),
    *("safe_mode", "allow_call_time_pass_reference", "track_vars", "mbstring.http_input", "mbstring.http_output"),
    *("always_populate_raw_post_data", "mbstring.func_overload", "asp_tags", "zend.ze1_compatibility_mode"),
    *("session.bug_compat_42", "session.bug_compat_warn", "session.hash_function", "session.hash_bits_per_character"),
}
_OFF: Final = frozenset({"off", "0", "no", "false"})
_DEFAULTS: Final = {
    **dict.fromkeys(("session.auto_start", "zlib.output_compression", "mbstring.encoding_translation"), _OFF),
    "default_charset": frozenset({"utf-8"}),
    "session.gc_maxlifetime": frozenset({"1440"}),
    "arg_separator.output": frozenset({"&"}),
}
"""Values that the site's PHP has anyway: PHP's own, which Debian's php.ini keeps."""
_UNSEEN: Final = {"output_buffering", "implicit_flush", "assert.active"}
"""Visitors get the same page with either value: when it is sent, and assertions, which are not compiled
(zend.assertions)."""
_SUHOSIN: Final = "suhosin."
"""An extension of PHP 5, which no version here has."""
_OF_CPANEL: Final = re.compile(r"/var/cpanel/php/sessions/[\w.-]+")
"""Where cPanel's PHP keeps its sessions."""
_OLD: Final = {"mod_php.c", "mod_php3.c", "mod_php4.c", "mod_php5.c"}
"""`mod_php.c` is the module's name in PHP 8, too."""
SETTING: Final = frozenset({"php_value", "php_flag", "php_admin_value", "php_admin_flag"})
# The panel sets post_max_size itself, this much above upload_max_filesize (`svc_webhost/php/pool.py`).
_FORM_MIB: Final = 8
_ELSEWHERE: Final = "Make it a setting of the site's PHP, or put it into a file .user.ini."


def php_setting(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    if len(directive.arguments) != 2:
        return blocks(_ELSEWHERE)
    name, value = directive.arguments[0].lower(), directive.arguments[1]
    if name in _NO_MORE or name.startswith(_SUHOSIN):
        return harmless("PHP no longer has this setting.")
    if value.lower() in _DEFAULTS.get(name, frozenset()):
        return same("The site's PHP has this value.")
    if name in _UNSEEN:
        return harmless("The page is the same with either value.")
    if name == "session.save_path" and _OF_CPANEL.fullmatch(value):
        return harmless("The site's PHP keeps its sessions in a folder of its own.")
    if situation.settings is None or not situation.at_top or narrowing(directive):
        return blocks(_ELSEWHERE)
    if _is_for_php_5(directive):
        return harmless("It is for a version of PHP that this server does not have.")
    # With Apache, PHP reads a form while it arrives; nginx receives the whole form first.
    if name == "max_input_time":
        return harmless("How long PHP reads a form; nginx has read it whole before.")
    if _said_again(directive, lines):
        return harmless("A later line says otherwise.")
    if name == "post_max_size":
        wanted = _mebibytes(value)
        if wanted is not None and wanted <= situation.settings["upload_max_filesize_mib"] + _FORM_MIB:
            return translated("PHP takes forms of this size.")
        return blocks("Have PHP take larger uploads (upload_max_filesize): forms may be 8 MiB larger.")
    wish = _wish(directive.name, name, value)
    if wish is None:
        return blocks(_ELSEWHERE)
    if situation.settings[wish.setting] == wish.value:
        return translated("The site's PHP has this setting.")
    if not is_setting(wish.setting, wish.value):
        return blocks(f"The site's PHP cannot have {wish.setting} {wish.value}. Set what it may have, or .user.ini.")
    return blocks(f"Set {wish.setting} of the site's PHP to {wish.value}.", wish)


def _wish(directive: str, name: str, value: str) -> PhpSet | None:
    if directive.endswith("_flag"):
        # Apache's module for PHP takes every other word for off (sapi/apache2handler/apache_config.c), even `true` and
        # `yes`, which are valid in a php.ini.
        return PhpSet(name, value.lower() in ("on", "1")) if name == "display_errors" else None
    if name in _MIB:
        size = _mebibytes(value)
        return None if size is None else PhpSet(_MIB[name], size)
    if name in _NUMBERS:
        if re.fullmatch(r"[0-9]{1,9}", value) is None:
            return None
        # No request of a visitor takes longer here; Apache's own limit of a request is shorter than such values, too.
        longest = EXECUTION_SECONDS[1] if name == "max_execution_time" else int(value)
        return PhpSet(_NUMBERS[name], min(int(value), longest))
    if name == "date.timezone":
        return PhpSet("timezone", value)
    return None


def _mebibytes(value: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,9})\s*([KMG]?)", value.upper())
    if match is None:
        return None
    # Only whole MiB are translated, because the panel's settings have this unit. 0 and -1 mean no limit, so they are
    # not translated.
    size = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]
    return size >> 20 if size % (1 << 20) == 0 and size > 0 else None


def _is_for_php_5(directive: Directive) -> bool:
    return any(module in _OLD - {"mod_php.c"} for module in modules(directive))


def _said_again(directive: Directive, lines: Lines) -> bool:
    def last() -> dict[tuple[str, tuple[str, ...]], int]:
        """The last line of each setting that counts: Apache lets a later line override an earlier one."""
        counting = (each for each in lines if not narrowing(each) and not _is_for_php_5(each))
        return {(each.name, each.arguments[:1]): each.line for each in counting if each.name in SETTING}

    said = lines.once("php settings", last)
    return said.get((directive.name, directive.arguments[:1]), 0) > directive.line
