"""Turns denials of .htaccess files into denied paths of a site (`DeniedPattern`): a folder, files with a name, and the
names or paths that a regular expression stands for, if it can be written out.

Invariant: a wish denies everything that its line denies. It may deny more: what lies below a denied file, and folders
that have the name of such a file.

Rejected: to hand the expressions to nginx. Customers would write regular expressions for the web server, and one of
them can hang it. Patterns are those of .gitignore: an expression is written out to all texts that it stands for, and if
those are too many or not certain, the line blocks and the owner decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import Final

from svc_webhost.accepted import LONGEST_PATTERN, is_denied, is_denied_pattern
from svc_webhost.apache.htaccess import Directive, Lines, Section, narrowing
from svc_webhost.htaccess.situation import INDEXES, Situation
from svc_webhost.htaccess.verdicts import Denied, Opinion, blocks, past, translated

_MOST: Final = 60
"""The most patterns of one expression."""
_LONGEST: Final = 32 << 10
"""Characters of an expression: `_MOST` texts of the longest pattern, with each character escaped, are 30,600."""
_MOST_DEPTH: Final = 20
"""The most nested groups: otherwise the file's author would determine how deep the recursion goes."""
_BEGIN, _END, _ANYTHING = "\x02", "\x03", "\x04"
"""Placeholders for `^`, `$` and `.*` in the texts for which an expression stands. `.+` counts as `.*`: a pattern may
deny more."""
_LONGEST_TEXT: Final = LONGEST_PATTERN + 4
"""The longest pattern with anchors at both ends. A longer text cannot become a pattern, whatever follows."""
_ESCAPED: Final = rf"\\[^A-Za-z0-9{_BEGIN}-{_ANYTHING}]"
_CLASS: Final = re.compile(rf"{_ESCAPED}|[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_~@=,:&!/.$*+?()|]")
"""A character of a class, or a range of letters or digits. Negated classes are not understood."""
SOURCES: Final = frozenset({"php", *(f"php{number}" for number in range(10)), "phps", "pht", "phtm", "phtml", "phar"})
"""Endings of files with PHP, in any case of letters. nginx runs `.php` in small letters, and shows none of them."""
_TOKEN: Final = re.compile(
    rf"({_ESCAPED})|(\.[*+])|(\(\?:|\()|([)|^$?])|([A-Za-z0-9_~@=,:&!/-])|\[((?:{_CLASS.pattern})+)\]"
)
_HIDDEN_ALTERNATIVE: Final = re.compile(r"(\^\((?:\?:)?)\\\.\(\?!well-known(?:/|\\/)?\)\|")
_SAYS_WHO: Final = frozenset({"require", "order", "allow", "deny"})
_OPENING: Final = {("require", ("all", "granted")), ("allow", ("from", "all"))}


def denied_by_section(directive: Directive, lines: Lines, situation: Situation) -> Opinion | None:
    """The opinion on a line that denies everybody what its section is about; None for any other line, or if no pattern
    can express the section."""
    patterns = _of_section(directive, situation)
    spared = _all_but_some(directive, lines, situation)
    if spared is not None:
        return denial_of([spared], situation)
    # Other denied paths have no exceptions. If a section of the file contains `Require all granted`, for example, the
    # site would also deny what that section opens.
    if patterns is None or not _denies_everybody(directive.sections, lines) or _opened_in_part(lines, patterns):
        return None
    # Many products write each denial twice, once for Apache 2.2. A line for 2.2 counts only if the file also denies its
    # patterns for current servers.
    if _is_skipped_today(directive) and tuple(patterns) not in _denied_on_all(lines, situation):
        return None
    return denial_of(patterns, situation)


def denied_by_rule(expression: str, situation: Situation, *, pages_too: bool) -> Opinion | None:
    """The opinion on a rewrite rule that denies paths, which are relative to the file's folder. `pages_too`: also paths
    that no file has, but pages of an application may have."""
    # nginx serves no hidden file anyway, so this alternative needs no pattern.
    written = _written_out(_HIDDEN_ALTERNATIVE.sub(r"\1", expression))
    base = "/".join(("", *situation.parts))
    patterns = [] if written is None else [_path_pattern(each, base) for each in written]
    known = [pattern for pattern in patterns if pattern is not None and is_denied_pattern(pattern)]
    # All patterns or none: with only some of them denied, the line would count as translated, and the other paths would
    # be open.
    if not known or len(known) < len(patterns) or _denied_pages(known, base):
        return None
    # `/config*` would deny the page /configurator as well; what is in a folder of files, or ends like one, is no page.
    if not pages_too and any(pattern.endswith("*") for pattern in known):
        return None
    return denial_of(known, situation)


def denial_of(patterns: Sequence[str], situation: Situation) -> Opinion:
    """The opinion on a line that denies these patterns."""
    # A pattern without a slash denies the name in all folders, however they are reached. A pattern with a slash denies
    # an address, and a link gives the files another address.
    if situation.around is not None and any("/" in pattern for pattern in patterns):
        return past(situation.around)
    if situation.is_denied or all(_is_covered(pattern, situation) for pattern in patterns):
        return translated("The site denies it.")
    listed = ", ".join(patterns[:5]) + (f" and {len(patterns) - 5} more" if len(patterns) > 5 else "")
    return blocks(f"Add to the site's denied paths: {listed}.", *(Denied(pattern) for pattern in patterns))


def _is_covered(pattern: str, situation: Situation) -> bool:
    """Whether the site denies the pattern, or the same names in a folder above."""
    base, anywhere, name = pattern.partition("/**/")
    above = base.split("/")
    wider = (f"{'/'.join(above[:depth])}/**/{name}" for depth in range(2, len(above))) if anywhere else ()
    return pattern in situation.denied or name in situation.denied or not situation.denied.isdisjoint(wider)


def _of_section(directive: Directive, situation: Situation) -> list[str] | None:
    """Patterns for what the sections around the line are about; None if there are none."""
    base = "/".join(("", *situation.parts))
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    if not sections:
        # The top folder is left out: a site can have denied paths, but no setting denies a whole site.
        return [base] if situation.parts and is_denied_pattern(base) else None
    names = names_of(sections[0]) if len(sections) == 1 else None
    if names is None:
        return None
    patterns = [f"{base}/**/{name}" if situation.parts else name for name in names]
    if not all(map(is_denied_pattern, patterns)):
        return None
    pages = _denied_pages(patterns, base)
    # Where no folder has index.php and another index page, Apache shows none instead of a denied index.php, either.
    if not pages or (pages == {"index.php"} and situation.parts and situation.has_one_page_at_most):
        return patterns
    return None


def _denied_pages(patterns: Sequence[str], base: str) -> set[str]:
    """The index pages that a pattern denies. Apache shows the folder's next index page instead, and nginx does not."""
    likely = [pattern for pattern in patterns if _may_deny(pattern, base)]
    return {page for page in INDEXES if any(is_denied(pattern, f"{base}/{page}") for pattern in likely)}


def _may_deny(pattern: str, base: str) -> bool:
    """A cheap test that excludes nearly all patterns before a regular expression is compiled: whether the pattern's
    folder is the page's or above it, and the page's name contains the literal part of the pattern's name."""
    folder, _, name = pattern.removesuffix("/").rpartition("/")
    beneath, name = folder.removesuffix("/**"), name.strip("*")
    return f"{base}/".startswith(f"{beneath}/") and any(name in f"{base}/{page}" for page in INDEXES)


def names_of(section: Section) -> list[str] | None:
    """Patterns of the names that the section is about; None if they are not known."""
    argument = section.argument.strip("\"'")
    if section.name == "files" and not argument.startswith("~"):
        # `?` and `[` are wildcards in <Files>, but not in patterns of the panel. `*` at one end is a wildcard in both.
        return None if re.search(r"[?\[]", argument) else [argument]
    if section.name not in ("files", "filesmatch"):
        return None
    expression = argument.removeprefix("~").strip().strip("\"'")
    plain = expression.replace("(?i:", "(?:").removeprefix("(?i)")
    written = _written_out(plain)
    names = [] if written is None else [_name_pattern(each) for each in written]
    # nginx serves no name with a dot at its start, besides the folder /.well-known/.
    names = [name for name in names if name != ".*"]
    known = [name for name in names if name is not None]
    if not known or len(known) < len(names):
        return None
    # Patterns distinguish capitals. An expression that does not is known if nginx shows the other forms to nobody.
    if plain != expression:
        known = [name.lower() for name in known]
        return known if all(name.rpartition(".")[2] in SOURCES and "." in name for name in known) else None
    return known


def _denies_everybody(sections: tuple[Section, ...], lines: Lines) -> bool:
    return lines.once(("denies everybody", sections), lambda: _keep_everybody_out(lines.directly_in(sections)))


def _keep_everybody_out(beside: Iterable[Directive]) -> bool:
    words = [_words(each) for each in beside]
    required = {arguments for name, arguments in words if name == "require"}
    denied = ("deny", ("from", "all")) in words
    orders = {arguments for name, arguments in words if name == "order"}
    others = [word for word in words if word[0] in ("allow", "satisfy", "authtype", "authuserfile")]
    others = [word for word in others if word != ("satisfy", ("all",))]
    others += [word for word in words if word[0] == "deny" and word[1] != ("from", "all")]
    # True if the lines of both generations, 2.4 (Require) and 2.2 (Order, Deny), open nothing and at least one denies.
    # `Order allow,deny` alone is a denial, too: deny is its default if no Allow matches.
    if others or not required <= {("all", "denied")} or not orders <= {("deny,allow",), ("allow,deny",)}:
        return False
    return bool(required) or denied or orders == {("allow,deny",)}


def _all_but_some(directive: Directive, lines: Lines, situation: Situation) -> str | None:
    """The pattern for a folder that the file denies, but for the files that its sections open by ending or name; None
    if it does something else."""
    if not situation.parts or narrowing(directive) or not _denies_everybody(directive.sections, lines):
        return None
    # A line for Apache 2.2 counts only if the file denies the folder on current servers, too.
    if _is_skipped_today(directive) and not lines.once("denied whole", lambda: _denied_whole(lines)):
        return None
    opened = lines.once("opened files", lambda: _opened_files(lines))
    if not opened:
        return None
    base = "/".join(("", *situation.parts))
    pattern = f"{base}/**/!({'|'.join(opened)})"
    return pattern if is_denied_pattern(pattern) else None


def _denied_whole(lines: Lines) -> bool:
    return any(
        each.name in _SAYS_WHO
        and not narrowing(each)
        and not _is_skipped_today(each)
        and _denies_everybody(each.sections, lines)
        for each in lines
    )


def _opened_files(lines: Lines) -> list[str] | None:
    """The files that sections of the file open for everybody: `*.jpg` or a name; None if a section says something else
    about files."""
    found = dict[str, None]()
    for each in lines:
        if not narrowing(each) or _is_skipped_today(each):
            continue
        if _words(each) not in _OPENING:
            # What else a section says of access may close again what this one opens.
            if each.name in _SAYS_WHO:
                return None
            continue
        sections = [section for section in each.sections if section.name in narrowing(each)]
        files = _opened_by(sections[0]) if len(sections) == 1 else None
        if files is None:
            return None
        found |= dict.fromkeys(files)
    return list(found)


_OPENED: Final = re.compile(
    r"(?P<any_case>\(\?i\))?(?:\^?\.[*+])?\\\.(?:\((?:\?:)?(?P<many>[A-Za-z0-9|?]+)\)|(?P<one>[A-Za-z0-9]+))\$"
)


def _opened_by(section: Section) -> list[str] | None:
    return _opened_endings_of(section) or _opened_names_of(section)


def _opened_endings_of(section: Section) -> list[str] | None:
    """Endings, in each case of letters where Apache ignores it."""
    if section.name not in ("files", "filesmatch") or (
        section.name == "files" and not section.argument.startswith("~")
    ):
        return None
    match = _OPENED.fullmatch(section.argument.removeprefix("~").strip().strip("\"'"))
    if match is None:
        return None
    written = _written_out(match["many"] or match["one"])
    if written is None or not all(re.fullmatch("[A-Za-z0-9]+", ending) for ending in written):
        return None
    if any(ending.lower() in SOURCES for ending in written):
        return None
    forms = [form for each in written for form in ((each.lower(), each.upper()) if match["any_case"] else (each,))]
    return [f"*.{form}" for form in forms]


def _opened_names_of(section: Section) -> list[str] | None:
    names = names_of(section) or []
    if not names or any("*" in name or name.rpartition(".")[2].lower() in SOURCES for name in names):
        return None
    return names


def _opened_in_part(lines: Lines, patterns: Sequence[str]) -> bool:
    """Whether a section of the file allows something that these patterns may deny."""
    opened = lines.once("opened in part", lambda: _opened_endings(lines))
    if not opened:
        return opened is None
    denied = [_ending(pattern.rpartition("/")[2]) for pattern in patterns]
    return any(ending is None or ending in opened for ending in denied)


def _opened_endings(lines: Lines) -> Set[str] | None:
    """Endings of the files that sections allow: pictures, for instance, where programs are denied. None if a section
    allows others too, or files that are not known."""
    found = set[str]()
    for each in lines:
        if not narrowing(each) or _words(each) not in _OPENING:
            continue
        sections = [section for section in each.sections if section.name in narrowing(each)]
        names = names_of(sections[0]) if len(sections) == 1 else None
        endings = [_ending(name) for name in names or ("",)]
        if None in endings:
            return None
        found |= {ending for ending in endings if ending is not None}
    return found


def _ending(name: str) -> str | None:
    """The ending for which the pattern stands, in lower case; None for a pattern of another kind."""
    match = re.fullmatch(r"\*\.([A-Za-z0-9]+)", name)
    return None if match is None else match[1].lower()


def _denied_on_all(lines: Lines, situation: Situation) -> Set[tuple[str, ...]]:
    """The patterns that the file denies on current servers. A line only for Apache 2.2 counts only if its patterns are
    among these."""

    def find() -> Set[tuple[str, ...]]:
        found = set()
        for sections in lines.places:
            first = next((each for each in lines.directly_in(sections) if each.name in _SAYS_WHO), None)
            if first is None or _is_skipped_today(first) or not _denies_everybody(sections, lines):
                continue
            patterns = _of_section(first, situation)
            if patterns is not None:
                found.add(tuple(patterns))
        return found

    return lines.once("denied on all", find)


def _is_skipped_today(directive: Directive) -> bool:
    return any(section.skipped_today for section in directive.sections)


def _words(directive: Directive) -> tuple[str, tuple[str, ...]]:
    return directive.name, tuple(argument.lower() for argument in directive.arguments)


def _name_pattern(written: str) -> str | None:
    begins, ends, text = _anchored(written)
    # Without an anchor the expression may match in the middle of a name. A pattern of the panel has only one star, at
    # one end.
    if not text or "/" in text or not (begins or ends):
        return None
    return text if begins and ends else f"{text}*" if begins else f"*{text}"


def _path_pattern(written: str, base: str) -> str | None:
    begins, ends, text = _anchored(written)
    if not text:
        return _ending_below(written, base)
    if begins:
        # A path from the file's folder starts without a slash, which many expressions allow for (`^/?config`).
        text = text.removeprefix("/")
        return f"{base}/{text}" if ends or text.endswith("/") else f"{base}/{text}*"
    # `_temp_/` anywhere: a folder whose name ends so.
    if "/" not in (text if ends else text.removesuffix("/")) and (ends or text.endswith("/")):
        return f"{base}/**/*{text}" if base else f"*{text}"
    return None


def _ending_below(written: str, base: str) -> str | None:
    """`^user/.*\\.md$`: names in a folder, and below it, that end so."""
    match = re.fullmatch(rf"{_BEGIN}/?([^{_BEGIN}-{_ANYTHING}]+)/{_ANYTHING}([^/{_BEGIN}-{_ANYTHING}]+){_END}", written)
    return None if match is None else f"{base}/{match[1]}/**/*{match[2]}"


def _anchored(written: str) -> tuple[bool, bool, str]:
    """Whether the expression is anchored at its start and at its end, and its text; the text is empty if the expression
    is not one literal text."""
    begins, ends = written.startswith(_BEGIN), written.endswith(_END)
    text = written.removeprefix(_BEGIN).removesuffix(_END)
    if text.startswith(_ANYTHING):
        begins, text = False, text.removeprefix(_ANYTHING)
    if text.endswith(_ANYTHING):
        ends, text = False, text.removesuffix(_ANYTHING)
    return begins, ends, "" if re.search(f"[{_BEGIN}{_END}{_ANYTHING}]", text) else text


def _written_out(expression: str) -> list[str] | None:
    """Every text that the expression matches; None if they are too many, or not known."""
    if len(expression) > _LONGEST:
        return None
    tokens = list(_TOKEN.finditer(expression))
    # finditer skips text that no token matches, such as an unknown class or a look-ahead. If anything was skipped, the
    # expression is not understood.
    if "".join(token[0] for token in tokens) != expression:
        return None
    try:
        return _Expression(tokens).written_out()
    except _NotEnumerableError:
        return None


class _NotEnumerableError(Exception):
    """The texts that the expression matches cannot be enumerated: they are too many, or a part of the expression is not
    understood."""


class _Expression:
    """Goes over the tokens once."""

    # Letters are collected in a list, and appended to the texts only where the expression branches: appending each
    # letter to, say, 60 texts would copy all of them each time.

    def __init__(self, tokens: Sequence[re.Match[str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def written_out(self) -> list[str]:
        found = self._alternatives(0)
        if self._at < len(self._tokens):
            raise _NotEnumerableError
        return found

    def _alternatives(self, depth: int) -> list[str]:
        """The alternatives up to the end of the group, whose `)` is then the next token, or up to the end of the
        expression."""
        if depth > _MOST_DEPTH:
            raise _NotEnumerableError
        found, texts, letters = list[str](), [""], list[str]()
        while self._at < len(self._tokens) and (token := self._tokens[self._at])[0] != ")":
            self._at += 1
            if token[0] == "|":
                found += _continued(texts, ["".join(letters)])
                texts, letters = [""], []
            elif token[0] == "?":
                # The quantifier follows nothing, or another quantifier, which it would make lazy.
                raise _NotEnumerableError
            else:
                part = self._group(depth) if token[3] else _letters(token)
                if self._at < len(self._tokens) and self._tokens[self._at][0] == "?":
                    self._at += 1
                    part = [*part, ""]
                if len(part) == 1:
                    letters += part
                else:
                    texts, letters = _continued(_continued(texts, ["".join(letters)]), part), []
            if len(found) + len(texts) > _MOST or len(letters) > _LONGEST_TEXT:
                raise _NotEnumerableError
        return [*found, *_continued(texts, ["".join(letters)])]

    def _group(self, depth: int) -> list[str]:
        part = self._alternatives(depth + 1)
        if self._at == len(self._tokens):
            raise _NotEnumerableError
        self._at += 1
        return part


def _letters(token: re.Match[str]) -> list[str]:
    """The letters of which the token matches one."""
    if token[6]:
        return [letter for part in _CLASS.findall(token[6]) for letter in _of_class(part)]
    if token[1]:
        return [token[1][1]]
    return [token[5] or {"^": _BEGIN, "$": _END, ".*": _ANYTHING, ".+": _ANYTHING}[token[0]]]


def _of_class(part: str) -> list[str]:
    if len(part) == 3:
        return [chr(code) for code in range(ord(part[0]), ord(part[2]) + 1)]
    return [part.removeprefix("\\") if len(part) > 1 else part]


def _continued(texts: Sequence[str], part: Sequence[str]) -> list[str]:
    """Each text, continued by each of `part`. Raises `_NotEnumerableError` if they are too many, or too long."""
    # Checked before the texts are built: ten groups of ten alternatives would be 10**10 texts.
    if len(texts) * len(part) > _MOST:
        raise _NotEnumerableError
    found = [text + more for text in texts for more in part]
    if max(map(len, found)) > _LONGEST_TEXT:
        raise _NotEnumerableError
    return found
