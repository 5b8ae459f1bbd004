"""The paths, redirects and PHP settings that a site may have, as patterns and bounds.

The models of the web server and of PHP use them (`nginx.model`, `php.settings`), and the judge of .htaccess files in
the confined helper compares with them: it may import the standard library alone, so this module does, too.

Why: docs/decisions/0018-hostile-text-in-confined-processes.md.
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import category

CHALLENGES: Final = "/.well-known/acme-challenge/"
"""Answered for every host, whatever else its site says (RFC 8555, section 8.3)."""

REQUEST_PATH: Final = r"^/[\w/.~!&()*+,=:@-]*$"
LONGEST_PATH: Final = 512
REDIRECT_TARGET: Final = (
    r"^(https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9/._~!&()*+,=:@%?#-]*)?"
    r"|/([A-Za-z0-9._~!&()*+,=:@%?#-][A-Za-z0-9/._~!&()*+,=:@%?#-]*)?)$"
)
LONGEST_TARGET: Final = 2048
REDIRECT_STATUSES: Final = frozenset({301, 302, 307, 308})

_NAME: Final = "[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*"
FALLBACK_PAGE: Final = rf"^/({_NAME}/)*{_NAME}\.html?$"
LONGEST_PAGE: Final = 255

_WORD: Final = r"[\w.~!&()+,=:@-]+"
_SPARED_NAME: Final = r"(\*\.[A-Za-z0-9]+|[A-Za-z0-9_][\w.~@+-]*)"
_SPARED_NAMES: Final = rf"!\({_SPARED_NAME}(\|{_SPARED_NAME})*\)"
DENIED_PATTERN: Final = rf"^((/({_WORD}/)*(\*\*/)?)?(\*{_WORD}|{_WORD}\*?)/?|/({_WORD}/)+\*\*/{_SPARED_NAMES})$"
"""As in .gitignore, and `/img/**/!(*.jpg|logo.png)` as in the shell: all of a folder but files with these endings or
names."""
PROTECTED_PLACE: Final = rf"^/({_WORD}(/{_WORD})*)?$"
LONGEST_PATTERN: Final = 255
FRONT_PATH: Final = rf"^/({_WORD}(/{_WORD})*/?)?$"
PHP_PROGRAM: Final = r"^(/[\w~@+-][\w.~@+-]*)+\.php$"
QUERY_PARAMETER: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
LONGEST_PARAMETER: Final = 64

MEMORY_LIMIT_MIB: Final = (16, 4096)
UPLOAD_MIB: Final = (1, 500)
"""Together with the rest of a form, an upload of this size stays below the web server's limit of a request."""
EXECUTION_SECONDS: Final = (1, 300)
"""At most as long as the web server waits for PHP's answer."""
INPUT_VARIABLES: Final = (100, 100_000)
TIME_ZONE: Final = r"^[A-Z][A-Za-z0-9_+-]{0,30}(/[A-Z][A-Za-z0-9_+-]{0,30}){0,2}$"
LONGEST_TIME_ZONE: Final = 64

_SETTINGS: Final = {
    "memory_limit_mib": MEMORY_LIMIT_MIB,
    "upload_max_filesize_mib": UPLOAD_MIB,
    "max_execution_time": EXECUTION_SECONDS,
    "max_input_vars": INPUT_VARIABLES,
}
WHOLE: Final = "(?s)"
"""The prefix of each expression: without it `.` would not match a line feed, which the name of a file may contain."""
ENDS: Final = "(?:/|(?!.))"
"""A pattern also covers paths that continue after it: a folder's files, and the path info of a PHP file. The end is
written in a form that nginx and Python understand in the same way: `$` would also match before a line feed at the
end."""
SPARED: Final = f"(?!{CHALLENGES})"
"""Excludes the challenges, because certificates depend on them, whatever else is denied."""


def expression(pattern: str) -> str:
    """The regular expression for paths that match a .gitignore-like pattern (`DENIED_PATTERN`), to be prefixed with
    `(?s)`. Its time grows linearly with the path's length, since it backtracks to one place at most."""
    if "/**/!(" in pattern:
        return _all_but(*pattern.removesuffix(")").split("/**/!("))
    ends, named = ("/", "[^/]*/") if pattern.endswith("/") else (ENDS, "")
    folder, _, name = pattern.removesuffix("/").rpartition("/")
    anywhere = folder.endswith("/**") or not pattern.startswith("/")
    beneath = re.escape(folder.removesuffix("/**"))
    if name.startswith("*"):
        return f"{beneath}/{'.*' if anywhere else '[^/]*'}{re.escape(name[1:])}{ends}"
    among = "(?:.*/)?" if anywhere else ""
    if name.endswith("*"):
        return f"{beneath}/{among}{re.escape(name[:-1])}{named}"
    return f"{beneath}/{among}{re.escape(name)}{ends}"


def _all_but(folder: str, spared: str) -> str:
    """The folder, and what is below it but for files with these endings or names. Where an earlier name ends like a
    program, the path is denied all the same: `/img/x.php/y.jpg` would run x.php."""
    forms = spared.split("|")
    endings = "|".join(re.escape(form[1:]) for form in forms if form.startswith("*"))
    names = "|".join(re.escape(form) for form in forms if not form.startswith("*"))
    files = "|".join([*([f".*(?:{endings})"] if endings else ()), *([f"(?:.*/)?(?:{names})"] if names else ())])
    return rf"{re.escape(folder)}(?:(?!.)|/(?:(?!(?:{files})(?!.))|.*\.[Pp][Hh][^/]*/))"


def is_denied(pattern: str, path: str) -> bool:
    return re.match(f"{WHOLE}{SPARED}{expression(pattern)}", path) is not None


def is_denied_pattern(text: str) -> bool:
    return _fits(DENIED_PATTERN, LONGEST_PATTERN, text)


def no_programs_in(folder: str) -> str:
    """The pattern that denies the PHP programs in a folder, given as a path, and below it."""
    return f"{folder}/**/*.php"


def is_protected_place(text: str) -> bool:
    return _fits(PROTECTED_PLACE, LONGEST_PATTERN, text)


def is_front_controller(path: str, program: str, *, serves_files: bool) -> bool:
    """Whether the path is one that nginx can compare, and the program a PHP file that nginx runs. A path whose files
    are not served must not contain the program, which would lead to itself."""
    fits = _fits(FRONT_PATH, LONGEST_PATTERN, path) and _fits(PHP_PROGRAM, LONGEST_PATTERN, program)
    if not fits or ".php/" in program or f"{path.rstrip('/')}/".startswith(CHALLENGES):
        return False
    return serves_files or not program.startswith(f"{path.rstrip('/')}/")


def is_query_parameter(text: str) -> bool:
    return _fits(QUERY_PARAMETER, LONGEST_PARAMETER, text)


def is_redirect(source: str, target: str, status: int) -> bool:
    """Whether the source is a path that nginx can compare, the target a URL or path, and the status that of a
    redirect."""
    fits = _fits(REQUEST_PATH, LONGEST_PATH, source) and _fits(REDIRECT_TARGET, LONGEST_TARGET, target)
    return fits and status in REDIRECT_STATUSES


def is_fallback_page(path: str) -> bool:
    """Whether a site may answer with the page of this path for paths without a file."""
    return _fits(FALLBACK_PAGE, LONGEST_PAGE, path)


def is_setting(name: str, value: int | bool | str) -> bool:
    """Whether a site's PHP may have this value of this setting (`PhpSettings`)."""
    if name == "display_errors":
        return isinstance(value, bool)
    if name == "timezone":
        return isinstance(value, str) and _fits(TIME_ZONE, LONGEST_TIME_ZONE, value)
    low, high = _SETTINGS[name]
    return isinstance(value, int) and low <= value <= high


def _fits(pattern: str, longest: int, text: str) -> bool:
    """Whether the text matches as pydantic matches: `$` is only the end of the text, and a digit-like character that is
    not a digit (²) is not a letter."""
    if len(text) > longest or text.endswith("\n"):
        return False
    return re.match(pattern, text) is not None and not any(category(letter) == "No" for letter in text)
