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
"""Placeholders for `^`, `$` and `.*` in the texts for which an expression stands."""
_LONGEST_TEXT: Final = LONGEST_PATTERN + 4
"""The longest pattern with anchors at both ends. A longer text cannot become a pattern, whatever follows."""
_ESCAPED: Final = rf"\\[^A-Za-z0-9{_BEGIN}-{_ANYTHING}]"
_CLASS: Final = re.compile(rf"{_ESCAPED}|[A-Za-z0-9_~@=,:&!/.$*+?()|]")
"""A character of a class. Classes with a range, and negated classes, are not understood."""
_TOKEN: Final = re.compile(
    rf"({_ESCAPED})|(\.\*)|(\(\?:|\()|([)|^$?])|([A-Za-z0-9_~@=,:&!/-])|\[((?:{_CLASS.pattern})+)\]"
)
_SAYS_WHO: Final = frozenset({"require", "order", "allow", "deny"})
_OPENING: Final = {("require", ("all", "granted")), ("allow", ("from", "all"))}


def denied_by_section(directive: Directive, lines: Lines, situation: Situation) -> Opinion | None:
    """The opinion on a line that denies everybody what its section is about; None for any other line, or if no pattern
    can express the section."""
    patterns = _of_section(directive, situation)
    # A denied path has no exceptions. If a section of the file contains `Require all granted`, for example, the site
    # would also deny what that section opens.
    if patterns is None or not _denies_everybody(directive.sections, lines) or _opened_in_part(lines):
        return None
    # Many products write each denial twice, once for Apache 2.2. A line for 2.2 counts only if the file also denies its
    # patterns for current servers.
    if _is_skipped_today(directive) and tuple(patterns) not in _denied_on_all(lines, situation):
        return None
    return _wanted(patterns, situation)


def denied_by_rule(expression: str, situation: Situation) -> Opinion | None:
    """The opinion on a rewrite rule that denies paths, which are relative to the file's folder."""
    written = _written_out(expression)
    base = "/".join(("", *situation.parts))
    patterns = [] if written is None else [_path_pattern(each, base) for each in written]
    known = [pattern for pattern in patterns if pattern is not None and is_denied_pattern(pattern)]
    # All patterns or none: with only some of them denied, the line would count as translated, and the other paths would
    # be open.
    if not known or len(known) < len(patterns) or _is_of_a_page(known, base):
        return None
    return _wanted(known, situation)


def _wanted(patterns: Sequence[str], situation: Situation) -> Opinion:
    # A pattern without a slash denies the name in all folders, however they are reached. A pattern with a slash denies
    # an address, and a link gives the files another address.
    if situation.around is not None and any("/" in pattern for pattern in patterns):
        return past(situation.around)
    if set(patterns) <= situation.denied or situation.is_denied:
        return translated("The site denies it.")
    listed = ", ".join(patterns[:5]) + (f" and {len(patterns) - 5} more" if len(patterns) > 5 else "")
    return blocks(f"Add to the site's denied paths: {listed}.", *(Denied(pattern) for pattern in patterns))


def _of_section(directive: Directive, situation: Situation) -> list[str] | None:
    """Patterns for what the sections around the line are about; None if there are none."""
    base = "/".join(("", *situation.parts))
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    if not sections:
        # The top folder is left out: a site can have denied paths, but no setting denies a whole site.
        return [base] if situation.parts and is_denied_pattern(base) else None
    names = _names(sections[0]) if len(sections) == 1 else None
    if names is None:
        return None
    patterns = [f"{base}/**/{name}" if situation.parts else name for name in names]
    return patterns if all(map(is_denied_pattern, patterns)) and not _is_of_a_page(patterns, base) else None


def _is_of_a_page(patterns: Sequence[str], base: str) -> bool:
    """Whether a pattern denies an index page. If it does, Apache shows the folder's next index page instead."""
    likely = [pattern for pattern in patterns if _may_deny(pattern, base)]
    return any(is_denied(pattern, f"{base}/{page}") for pattern in likely for page in INDEXES)


def _may_deny(pattern: str, base: str) -> bool:
    """A cheap test that excludes nearly all patterns before a regular expression is compiled: whether the pattern's
    folder is the page's or above it, and the page's name contains the literal part of the pattern's name."""
    folder, _, name = pattern.removesuffix("/").rpartition("/")
    beneath, name = folder.removesuffix("/**"), name.strip("*")
    return f"{base}/".startswith(f"{beneath}/") and any(name in f"{base}/{page}" for page in INDEXES)


def _names(section: Section) -> list[str] | None:
    argument = section.argument.strip("\"'")
    if section.name == "files" and not argument.startswith("~"):
        # `?` and `[` are wildcards in <Files>, but not in patterns of the panel. `*` at one end is a wildcard in both.
        return None if re.search(r"[?\[]", argument) else [argument]
    if section.name not in ("files", "filesmatch"):
        return None
    written = _written_out(argument.removeprefix("~").strip().strip("\"'"))
    names = [] if written is None else [_name_pattern(each) for each in written]
    known = [name for name in names if name is not None]
    return known if known and len(known) == len(names) else None


def _denies_everybody(sections: tuple[Section, ...], lines: Lines) -> bool:
    return lines.once(("denies everybody", sections), lambda: _keep_everybody_out(lines.directly_in(sections)))


def _keep_everybody_out(beside: Iterable[Directive]) -> bool:
    words = [_words(each) for each in beside]
    required = {arguments for name, arguments in words if name == "require"}
    denied = ("deny", ("from", "all")) in words
    orders = {arguments for name, arguments in words if name == "order"}
    others = [word for word in words if word[0] in ("allow", "satisfy", "authtype", "authuserfile")]
    others += [word for word in words if word[0] == "deny" and word[1] != ("from", "all")]
    # True if the lines of both generations, 2.4 (Require) and 2.2 (Order, Deny), open nothing and at least one denies.
    # `Order allow,deny` alone is a denial, too: deny is its default if no Allow matches.
    if others or not required <= {("all", "denied")} or not orders <= {("deny,allow",), ("allow,deny",)}:
        return False
    return bool(required) or denied or orders == {("allow,deny",)}


def _opened_in_part(lines: Lines) -> bool:
    """Whether a section of the file allows something that another line of the file may deny."""
    return lines.once("opened in part", lambda: any(narrowing(each) and _words(each) in _OPENING for each in lines))


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
        return None
    if begins:
        return f"{base}/{text}" if ends or text.endswith("/") else f"{base}/{text}*"
    if ends and "/" not in text:
        return f"{base}/**/*{text}" if base else f"*{text}"
    return None


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
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The expression matches too many texts, or texts that are not known."""


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
            raise _UnknownError
        return found

    def _alternatives(self, depth: int) -> list[str]:
        """The alternatives up to the end of the group, whose `)` is then the next token, or up to the end of the
        expression."""
        if depth > _MOST_DEPTH:
            raise _UnknownError
        found, texts, letters = list[str](), [""], list[str]()
        while self._at < len(self._tokens) and (token := self._tokens[self._at])[0] != ")":
            self._at += 1
            if token[0] == "|":
                found += _continued(texts, ["".join(letters)])
                texts, letters = [""], []
            elif token[0] == "?":
                # The quantifier follows nothing, or another quantifier, which it would make lazy.
                raise _UnknownError
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
                raise _UnknownError
        return [*found, *_continued(texts, ["".join(letters)])]

    def _group(self, depth: int) -> list[str]:
        part = self._alternatives(depth + 1)
        if self._at == len(self._tokens):
            raise _UnknownError
        self._at += 1
        return part


def _letters(token: re.Match[str]) -> list[str]:
    """The letters of which the token matches one."""
    if token[6]:
        return [letter.removeprefix("\\") if len(letter) > 1 else letter for letter in _CLASS.findall(token[6])]
    if token[1]:
        return [token[1][1]]
    return [token[5] or {"^": _BEGIN, "$": _END, ".*": _ANYTHING}[token[0]]]


def _continued(texts: Sequence[str], part: Sequence[str]) -> list[str]:
    """Each text, continued by each of `part`. Raises `_UnknownError` if they are too many, or too long."""
    # Checked before the texts are built: ten groups of ten alternatives would be 10**10 texts.
    if len(texts) * len(part) > _MOST:
        raise _UnknownError
    found = [text + more for text in texts for more in part]
    if max(map(len, found)) > _LONGEST_TEXT:
        raise _UnknownError
    return found
