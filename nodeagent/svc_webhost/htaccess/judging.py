"""Gives each directive of an .htaccess file its verdict, for a site that nginx serves.

Invariant: a line that keeps visitors from something (a denial, a password, PHP that must not run) is never SAME or
HARMLESS unless nginx is known to keep them from all of it. A directive that is not known blocks.

The price of a wrong verdict is not even. A line that blocks for no reason costs the owner a look; a denial that is lost
opens files that nobody looks at. So each branch below asks what Apache does at most, and what nginx does at least.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from svc_webhost.accepted import is_protected_place
from svc_webhost.apache.asking import ASKING, password_asked
from svc_webhost.apache.htaccess import TOO_DEEP, Directive, Lines, Section, narrowing
from svc_webhost.apache.passwords import NoPasswordsError
from svc_webhost.htaccess import rewriting
from svc_webhost.htaccess.denying import denied_by_section
from svc_webhost.htaccess.falling_back import falling_back, page_of
from svc_webhost.htaccess.media import added_charset, caching, default_charset, endings_of, filtered, typed
from svc_webhost.htaccess.patterns import only_dotfiles
from svc_webhost.htaccess.php_values import SETTING, php_setting
from svc_webhost.htaccess.programs import stopped, stopped_endings
from svc_webhost.htaccess.redirecting import redirect
from svc_webhost.htaccess.situation import INDEXES, Situation
from svc_webhost.htaccess.variables import environment, request_header, switched_off, tls_options
from svc_webhost.htaccess.verdicts import UNKNOWN, Opinion, Protected, Verdict, blocks, harmless, past, same, translated

_INDEXES_OF_FILES: Final = INDEXES[1:]
_SAFE_OPTIONS: Final = {
    *("-indexes", "-multiviews", "-execcgi", "-includes", "-includesnoexec"),
    *("followsymlinks", "+followsymlinks", "symlinksifownermatch", "+symlinksifownermatch"),
}
# With these options Apache answers 403 for links that nginx follows. "None" turns off FollowSymLinks, too.
_WITHOUT_LINKS: Final = {"none", "-followsymlinks", "-symlinksifownermatch"}
# Headers for caches and connections. They change how often visitors ask, but not what they get.
_CACHING: Final = {
    "expires",
    "etag",
    "last-modified",
    "pragma",
    "age",
    "connection",
    "keep-alive",
}
# Headers that nginx adds to the answers of every site anyway (`svc_webhost.nginx`).
_ADDED: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "sameorigin",
    "referrer-policy": "strict-origin-when-cross-origin",
}
_SAYS_NOTHING: Final = {
    *("x-powered-by", "server", "etag", "x-xss-protection", "x-ua-compatible", "ms-author-via"),
    "x-permitted-cross-domain-policies",
}
"""Headers that browsers no longer read, or have never read."""
_SHARED: Final = {
    *("eot", "otf", "ttf", "ttc", "tt[cf]", "woff", "woff2", "woff2?", "font.css", "css", "svg", "svgz", "svgz?"),
    *("avif", "avifs?", "bmp", "cur", "gif", "ico", "jpg", "jpeg", "jpe?g", "png", "webp"),
}
"""Fonts, styles and pictures: a browser asks for the header only if a page of another site or name uses them."""
_OF_NEXTCLOUD: Final = {"referrer-policy", "x-robots-tag"}
"""Headers that Nextcloud sends itself where the server does not say `modHeadersAvailable`."""
_HARMLESS: Final = {
    "expiresactive": "How long browsers keep files.",
    "expiresbytype": "How long browsers keep files.",
    "expiresdefault": "How long browsers keep files.",
    "fileetag": "How browsers ask whether a file has changed.",
    "deflatecompressionlevel": "nginx compresses by itself.",
    "browsermatch": "It is about browsers of twenty years ago.",
    "browsermatchnocase": "It is about browsers of twenty years ago.",
    "addlanguage": "It is a header that says the language.",
    "defaultlanguage": "It is a header that says the language.",
    "serversignature": "nginx's own pages do not say where they are from.",
    "indexignore": "Folders are not listed.",
    "indexoptions": "Folders are not listed.",
    "indexorderdefault": "Folders are not listed.",
    "readmename": "Folders are not listed.",
    "headername": "Folders are not listed.",
    "rewriteengine": "Its rules are judged one by one.",
    "rewritebase": "Its rules are judged one by one.",
    "rewriteoptions": "Its rules are judged one by one.",
}
# Both sets contain what `nginx/access.py` denies. An entry that is not denied there would open a file that
# Apache denies.
_DENIED_IN_WORDPRESS: Final = {
    *("wp-config.php", "wp-config-sample.php", "xmlrpc.php", "debug.log"),
    *("readme.html", "readme.txt", "license.txt", "license.html"),
}
"""Denied in all folders."""
_DENIED_IN_UPLOADS: Final = {
    *("php", "php3", "php4", "php5", "php7", "phps", "phtm", "phtml", "phar", "pht"),
    *("pl", "py", "jsp", "asp", "htm", "shtml", "sh", "cgi"),
}
_ANSWERED: Final = re.compile(r"(?:[45]\d\d) (?!https?:|ftp:)\S.*", re.DOTALL)
"""Arguments of an ErrorDocument that keep the status. A URL with a host would turn the error into a redirect."""
_LEAST_BODY: Final = 1 << 20
"""Bytes. A smaller limit is there to protect something in the application; a larger one is about uploads, which nginx
limits itself."""
_INDEX_PAGES: Final = ("/index.html", "/index.htm")
_ON_OR_OFF: Final = {"expiresactive", "rewriteengine"}
_PAIRS: Final = {
    *("expiresbytype", "addlanguage"),
    *("browsermatch", "browsermatchnocase"),
}


@dataclass(frozen=True)
class DirectiveVerdict:
    directive: Directive
    opinion: Opinion


def judge(directives: Sequence[Directive], situation: Situation) -> list[DirectiveVerdict]:
    if situation.folder is None:
        # The folder is outside the document root. Only a link within the site can still lead visitors there.
        nothing = same("Visitors see nothing of this folder.")
        opinion = nothing if situation.around is None else past(situation.around)
        return [DirectiveVerdict(directive, opinion) for directive in directives]
    lines = Lines(directives)
    rewrites = rewriting.opinions(lines, situation)
    return [
        DirectiveVerdict(each, rewrites[number] if number in rewrites else _opinion(each, lines, situation))
        for number, each in enumerate(directives)
    ]


def _opinion(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    # Checked first: Apache answers everything below such a file with an error, so a broken line denies as well.
    if directive.broken == TOO_DEEP:
        return blocks(f"It is not known what the line does: {TOO_DEEP}.")
    if directive.broken is not None:
        return blocks(f"Apache refuses a file with this line, and serves nothing where it applies: {directive.broken}.")
    judged = _JUDGES.get(directive.name)
    if judged is not None:
        return judged(directive, lines, situation)
    reason = _HARMLESS.get(directive.name)
    arguments = [argument.lower() for argument in directive.arguments]
    if directive.name in _HARMLESS and not _accepted(directive.name, arguments):
        return blocks("Apache refuses a file with this line, and serves nothing where it applies.")
    return UNKNOWN if reason is None else harmless(reason)


def _accepted(name: str, arguments: list[str]) -> bool:
    """Whether Apache accepts the line. If it does not, it answers every request below the file's folder with an
    error."""
    if name in _ON_OR_OFF:
        return arguments[:1] in (["on"], ["off"])
    # In Apache a comment cannot follow a directive on the same line: there "#" is an argument.
    if "#" in arguments:
        return False
    return len(arguments) >= (2 if name in _PAIRS else 1)


def _options(directive: Directive, _: Lines, __: Situation) -> Opinion:
    wanted = {argument.lower() for argument in directive.arguments}
    if len({argument[0] in "+-" for argument in wanted if argument}) != 1:
        return blocks("Apache refuses a file with this line: either all of its words have a sign, or none has.")
    if wanted & _WITHOUT_LINKS:
        return blocks("Apache serves no symbolic link with it; nginx follows those to what the site owns.")
    if wanted <= _SAFE_OPTIONS:
        return same("nginx lists no folder, runs no program, and follows links to what the site owns.")
    return blocks(f"nginx has nothing of the kind: {', '.join(sorted(wanted - _SAFE_OPTIONS))}.")


def _index(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    ours = INDEXES if situation.php else _INDEXES_OF_FILES
    wanted = directive.arguments
    # nginx never looks for a page of another name. A shorter list, or another order, may still lead to the same page
    # (see below).
    if not wanted or "#" in wanted or not set(wanted) <= set(ours):
        return blocks(f"nginx looks for {', '.join(ours)}, in this order.")
    if narrowing(directive):
        return blocks("nginx looks for the same pages in all folders.")
    if wanted == ours:
        return same(f"nginx looks for {', '.join(ours)}, in this order.")
    if situation.indexes is None:
        return blocks(f"nginx looks for {', '.join(ours)}, in this order, and not all folders could be looked at.")
    # If a folder's only page is not in the list, Apache answers 403, but nginx shows the page: so a shorter list may
    # act as a denial. Whether it does depends on the existing folders; these are checked again whenever the file is
    # judged.
    asked = tuple(dict.fromkeys(wanted))
    other = lines.once(("index", asked), lambda: _page_otherwise(asked, ours, lines, situation))
    if other is not None:
        return blocks(f"nginx shows {other} where the folder is asked for, and Apache does not.")
    return same(f"nginx looks for {', '.join(ours)}; it finds the same page in each folder that there is.")


def _page_otherwise(
    wanted: tuple[str, ...], ours: tuple[str, ...], lines: Lines, situation: Situation
) -> PurePosixPath | None:
    """The first page of a folder that differs between nginx and Apache; the folder itself if nginx finds no page."""
    here = "" if situation.at_top else f"{situation.folder}/"
    beneath = lines.once(
        "folders",
        lambda: [
            (folder, there) for folder, there in (situation.indexes or {}).items() if f"{folder}/".startswith(here)
        ],
    )
    for folder, there in beneath:
        shown = next((name for name in ours if name in there), None)
        if shown != next((name for name in wanted if name in there), None):
            return folder / (shown or "")
    return None


def _access(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    """Require, Order, Allow, Deny and Satisfy: together, the lines of one section say who has access. So all of them
    get the same opinion."""
    return lines.once(("access", directive.sections), lambda: _access_of(directive, lines, situation))


def _access_of(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    words = [
        (each.name, tuple(argument.lower() for argument in each.arguments))
        for each in lines.directly_in(directive.sections)
    ]
    opened = [word for word in words if word in (("require", ("all", "granted")), ("allow", ("from", "all")))]
    rules = [word for word in words if word[0] in ("require", "allow", "deny", "satisfy", "authtype")]
    orders = {arguments for name, arguments in words if name == "order"}
    # `Require all granted` does not undo what `Order` closes: each of the two may keep visitors out.
    by_order = orders <= {("deny,allow",)} or (
        ("allow", ("from", "all")) in words and orders <= {("deny,allow",), ("allow,deny",), ("mutual-failure",)}
    )
    # In a section for one method, or next to alternatives of which one is enough, the line opens less than its text
    # suggests.
    everybody = all(word in opened for word in rules) and (opened or orders) and by_order
    if everybody and not _inside(
        directive, "limit", "limitexcept", "if", "elseif", "else", "requireany", "requirenone"
    ):
        # The file opens a folder that the site's settings close: visitors would lose access that they have with Apache.
        if situation.is_denied or situation.logins is not None:
            return blocks("The site denies the folder, or asks for a password there.")
        return same("Everybody may see it.")
    if _denied_by_nginx(directive, situation):
        return same("nginx serves none of these files.")
    if any(name in ASKING for name, _ in words):
        return _password(directive, lines, situation)
    return denied_by_section(directive, lines, situation) or blocks(
        "nginx does not keep anybody from it: what is kept from visitors there would be open here."
    )


def _password(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    """A line that makes visitors of the folder need a login. If the file does not name the users, the owner decides
    which logins exist; in an import they are the old host's."""
    return lines.once(("password", directive.sections), lambda: _password_of(directive.sections, lines, situation))


def _password_of(sections: tuple[Section, ...], lines: Lines, situation: Situation) -> Opinion:
    # A protected path is an address, and the link gives the folder another address.
    if situation.around is not None:
        return past(situation.around)
    path = situation.path
    try:
        asked = password_asked(sections, lines)
    except NoPasswordsError as error:
        return blocks(
            f"What it protects would be open here: {error}. Protect {path} by a password, if it is for all of it."
        )
    passwords = situation.passwords
    # In an import only the path itself is considered: a protected path above it may let other users in. On a site that
    # already exists, the owner may have intended the protection above.
    logins = situation.logins if passwords is None else situation.protected.get(path)
    if logins is not None:
        # `Require user ada` lets only ada in: if the site has logins beyond the named users, these would get more
        # access than with Apache.
        if asked.users is None or logins <= asked.users:
            return translated("The site asks for a password there.")
        return blocks(f"The site lets in others there: take away {', '.join(sorted(logins - asked.users))}.")
    if passwords is None:
        return blocks(f"What it protects would be open here. Protect {path} by a password.")
    try:
        if isinstance(passwords, str):
            raise NoPasswordsError(passwords)
        taken = passwords.of(asked.users)
        if not is_protected_place(path):
            raise NoPasswordsError("no protected path can be called so")
    except NoPasswordsError as error:
        return blocks(f"What it protects would be open here: {error}. Protect {path} by a password.")
    wish = Protected(path, tuple(taken.verifiers.items()))
    return blocks(f"Protect {path} by the passwords that came along.", wish)


def _denied_by_nginx(directive: Directive, situation: Situation) -> bool:
    """Whether nginx denies all files that the section around the line is about."""
    # nginx denies folders with a leading dot, except the top-level folder .well-known (RFC 8615). A link would give the
    # folder an address without the hidden name.
    if situation.around is None and any(part.startswith(".") and part != ".well-known" for part in situation.parts):
        return True
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    # Without a section the line is about the whole folder. With several, it is about the files to which all of them
    # apply; this is not handled.
    if len(sections) != 1:
        return False
    [section] = sections
    if section.name == "files" and not section.argument.startswith("~"):
        dotfile = section.argument.startswith(".") and len(section.argument) > 1
        return dotfile or (situation.wordpress and section.argument in _DENIED_IN_WORDPRESS)
    if section.name in ("filesmatch", "files"):
        expression = section.argument.removeprefix("~").strip().strip("\"'")
        return only_dotfiles(expression)
    return False


def _inside(directive: Directive, *names: str) -> bool:
    return any(section.name in names for section in directive.sections)


def _header(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    arguments = [argument.lower() for argument in directive.arguments]
    if arguments[:1] in (["always"], ["onsuccess"]):
        arguments = arguments[1:]
    if arguments[1:2] and arguments[1] in _OF_NEXTCLOUD and ("modheadersavailable", "true") in _variables(lines):
        return same("Nextcloud sends this header itself.")
    # The expression of an <If> is not evaluated, so it is unknown which answers get the header.
    if len(arguments) < 2 or _inside(directive, "if", "elseif", "else"):
        return blocks("nginx does not add, change or take away this header.")
    action, name, *value = arguments
    if action not in ("set", "append", "merge", "add", "unset") or bool(value) is (action == "unset"):
        return blocks("nginx does not add, change or take away this header.")
    if name in ("cache-control", "vary"):
        if _is_kept_by_wordpress(situation):
            return harmless("WordPress shows what it keeps there.")
        return caching(action, value, directive, situation)
    if name in _CACHING:
        return harmless("How long browsers keep files.")
    if name in _SAYS_NOTHING:
        return harmless("What the header says does not change what visitors get.")
    if action in ("set", "append", "merge") and value == [_ADDED.get(name)]:
        return same("nginx adds this header.")
    if action == "unset" and ("always", "set", name) in _headers_beside(directive, lines):
        return harmless("Another line sets the header.")
    if (name, value) == ("permissions-policy", ["interest-cohort=()"]):
        return harmless("No browser has what the header refuses.")
    if (action, name, value[:1]) == ("set", "access-control-allow-origin", ["*"]) and situation.has_one_name:
        files = [section.argument for section in directive.sections if section.name in narrowing(directive)]
        match = re.fullmatch(r"\\\.\(([^()]+)\)\$", files[0]) if len(files) == 1 else None
        if match is not None and _SHARED.issuperset(match[1].split("|")):
            return harmless("Pages of this site show these files without it; it is for pages of other sites.")
    return blocks("nginx does not add, change or take away this header. The application can send it itself.")


def _headers_beside(directive: Directive, lines: Lines) -> frozenset[tuple[str, ...]]:
    """The first three words of the `Header` lines in the same section."""

    def find() -> frozenset[tuple[str, ...]]:
        beside = [each for each in lines.directly_in(directive.sections) if each.name == "header"]
        return frozenset(tuple(argument.lower() for argument in each.arguments[:3]) for each in beside)

    return lines.once(("headers", directive.sections), find)


def _variables(lines: Lines) -> frozenset[tuple[str, ...]]:
    """The words of the `SetEnv` lines."""
    return lines.once(
        "variables",
        lambda: frozenset(
            tuple(argument.lower() for argument in each.arguments) for each in lines if each.name == "setenv"
        ),
    )


def _handler(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    arguments = [argument.lower() for argument in directive.arguments]
    runs_php = bool(arguments) and "php" in arguments[0]
    stops = stopped_endings(directive)
    endings = frozenset(argument.lstrip(".") for argument in arguments[1:])
    if directive.name == "addtype" and not runs_php:
        return _type(directive, endings, stops or frozenset(), situation)
    forced = endings_of(directive) if directive.name == "forcetype" and not runs_php else None
    if forced is not None:
        return _type(directive, forced, (stops or frozenset()) & forced, situation)
    runs = runs_php and stops is None
    if runs and situation.php and directive.name in ("addhandler", "addtype") and not narrowing(directive):
        if endings == {"php"}:
            return same("PHP runs files that end with .php, in the version that the site has here.")
        if "php" in endings and all(re.fullmatch("php[0-9]?|phtml", ending) for ending in endings):
            return harmless("PHP runs files that end with .php. Those with the other endings are not shown to anybody.")
    if directive.name == "forcetype" and _is_kept_by_wordpress(situation):
        return harmless("WordPress shows what it keeps there.")
    otherwise = blocks("nginx runs as PHP what ends with .php, and nothing else, wherever it lies.")
    if stops is None:
        return otherwise
    return _stopped(directive, stops, situation) or otherwise


def _is_kept_by_wordpress(situation: Situation) -> bool:
    return situation.wordpress and situation.parts[:2] == ("wp-content", "cache")


def _type(directive: Directive, endings: frozenset[str], stops: frozenset[str], situation: Situation) -> Opinion:
    """A line that gives files with these endings a type. `stops`: of those that it keeps from being run or shown."""
    if not endings or not directive.arguments[0]:
        return blocks("Apache refuses a file with this line, and serves nothing where it applies.")
    if _is_kept_by_wordpress(situation):
        return harmless("WordPress shows what it keeps there.")
    others = typed(directive, endings - stops, situation)
    if not stops or others.verdict is Verdict.BLOCKS:
        return others
    return _stopped(directive, stops, situation) or blocks("nginx would show files that Apache sends as another type.")


def _default_charset(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    return default_charset(directive, situation)


def _charset(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    return added_charset(directive, situation)


def _filter(directive: Directive, *_: object) -> Opinion:
    return filtered(directive)


def _stopped(directive: Directive, endings: frozenset[str], situation: Situation) -> Opinion | None:
    """The opinion on a line that stops files with these endings in its folder."""
    # nginx denies by the address, so a link into the folder from elsewhere would run uploaded files.
    if situation.wordpress and situation.parts[:2] == ("wp-content", "uploads") and situation.around is None:
        endings -= _DENIED_IN_UPLOADS
        if not endings:
            return same("nginx runs nothing that was uploaded.")
    return stopped(directive, endings, situation)


def _php_setting(directive: Directive, lines: Lines, situation: Situation) -> Opinion:
    # This is not a setting but a denial: it prevents uploaded scripts from being run.
    name, *value = [argument.lower() for argument in directive.arguments] or [""]
    # Apache refuses a file with php_admin_flag. Of php_flag it takes every word but these two for off.
    if directive.name == "php_flag" and name == "engine" and len(value) == 1 and value[0] not in ("on", "1"):
        opinion = _stopped(directive, frozenset({"php"}), situation)
        return opinion or blocks("nginx runs what ends with .php, also here.")
    return php_setting(directive, lines, situation)


def _error_document(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    # Apache 1.3's form: a text starts with a quote that is never closed.
    if re.fullmatch(r"[Ee]rror[Dd]ocument\s+[45]\d\d\s+\"[^\"]+", directive.text):
        return harmless("The status is the same; visitors see a page of nginx's own.")
    if len(directive.arguments) != 2 or not _ANSWERED.fullmatch(" ".join(directive.arguments).lower()):
        return blocks(
            "Apache sends visitors elsewhere by it, or refuses the file: nginx answers with the status alone."
        )
    # The page of a single-page application: with Apache visitors see the application at each of its addresses.
    page = page_of(directive.arguments[1], base_is_top=False) if directive.arguments[0] == "404" else None
    if page in _INDEX_PAGES and situation.at_top and not situation.wordpress and not narrowing(directive):
        return falling_back(page, situation)
    return harmless("The status is the same; visitors see a page of nginx's own.")


def _encoding(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    if _is_kept_by_wordpress(situation) and len(directive.arguments) > 1:
        return harmless("WordPress shows what it keeps there.")
    if [argument.lower().lstrip(".") for argument in directive.arguments] == ["gzip", "svgz"]:
        return same("nginx says of such pictures that they are compressed.")
    return blocks("nginx serves such a file as it is.")


def _body(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    size = " ".join(directive.arguments)
    # For Apache 0 means no limit. Such a line blocks, because nginx has a limit.
    taken = re.fullmatch("[0-9]{1,10}", size) is not None and int(size) >= _LEAST_BODY
    if taken and situation.php and situation.at_top and not narrowing(directive):
        return harmless("nginx takes up to 512 MB, and PHP as much as its settings say.")
    return blocks("nginx takes up to 512 MB.")


def _fallback(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    if situation.at_top and len(directive.arguments) == 1 and not narrowing(directive):
        [target] = directive.arguments
        if target.lower() == "disabled":
            return same("Nothing above the site says otherwise.")
        if target == "/index.php" and situation.php and situation.fallback_page is None:
            return same("nginx asks index.php for what is no file.")
        page = page_of(target, base_is_top=False)
        if page is not None:
            return falling_back(page, situation)
    return blocks("nginx answers what is no file with 404, a page of HTML, or index.php at the top of the site.")


def _path_info(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    if situation.php and [argument.lower() for argument in directive.arguments] == ["on"]:
        return same("What follows the name of a PHP file is given to it.")
    return blocks("What follows the name of a PHP file is given to it by nginx.")


def _redirect(directive: Directive, _: Lines, situation: Situation) -> Opinion:
    return redirect(directive, situation)


Judge = Callable[[Directive, Lines, Situation], Opinion]

_JUDGES: Final[dict[str, Judge]] = {
    "options": _options,
    "directoryindex": _index,
    **dict.fromkeys(("require", "order", "allow", "deny", "satisfy"), _access),
    **dict.fromkeys(
        (
            *("authtype", "authname", "authuserfile", "authgroupfile", "authbasicprovider", "authdigestdomain"),
            *("authdbmuserfile", "authmerging", "authform", "authldapurl"),
        ),
        _password,
    ),
    **dict.fromkeys(("redirect", "redirectpermanent", "redirecttemp"), _redirect),
    "header": _header,
    **dict.fromkeys(("addhandler", "sethandler", "removehandler", "addtype", "removetype", "forcetype"), _handler),
    "adddefaultcharset": _default_charset,
    "addcharset": _charset,
    **dict.fromkeys(("addoutputfilter", "addoutputfilterbytype", "setoutputfilter"), _filter),
    **dict.fromkeys(SETTING, _php_setting),
    "errordocument": _error_document,
    **dict.fromkeys(("setenv", "setenvif", "setenvifnocase", "unsetenv", "passenv"), environment),
    "addencoding": _encoding,
    "requestheader": request_header,
    **dict.fromkeys(("secfilterengine", "secfilterscanpost", "secruleengine", "modpagespeed"), switched_off),
    "ssloptions": tls_options,
    "limitrequestbody": _body,
    "fallbackresource": _fallback,
    "acceptpathinfo": _path_info,
}
