"""What .htaccess files deny, as the denied paths of a site (`DeniedPattern`): a folder, files of a name, and names or
paths that an expression stands for, where it can be written out.

Invariant: what a wish denies is all that its line denies. It may be more: what is below a denied file, and folders that
are called as such a file is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import Final

from svc_actors.host.accepted import LONGEST_PATTERN, is_denied, is_denied_pattern
from svc_actors.host.apache.htaccess import Directive, Lines, Section, modules, narrowing
from svc_actors.host.htaccess.situation import INDEXES, Situation
from svc_actors.host.htaccess.verdicts import Denied, Opinion, blocks, past, translated

_MOST: Final = 60
"""Patterns of one expression."""
_LONGEST: Final = 32 << 10
"""Characters of an expression: as many texts of the longest pattern, each character escaped."""
_MOST_DEPTH: Final = 20
"""Groups in each other."""
_BEGIN, _END, _ANYTHING = "\x02", "\x03", "\x04"
"""Stand for `^`, `$` and `.*` in what an expression is written out to."""
_LONGEST_TEXT: Final = LONGEST_PATTERN + 4
"""With those at its ends: a longer one is no pattern, whatever follows."""
_TOKEN: Final = re.compile(r"\\([^A-Za-z0-9])|(\.\*)|(\(\?:|\()|([)|^$?])|([A-Za-z0-9_~@=,:&!/-])")
_SAYS_WHO: Final = frozenset({"require", "order", "allow", "deny"})
_OPENING: Final = {("require", ("all", "granted")), ("allow", ("from", "all"))}


def denied_by_section(directive: Directive, lines: Lines, situation: Situation) -> Opinion | None:
    """Of a line that keeps everybody from what its section is about; None where it is another, or it cannot be said."""
    patterns = _of_section(directive, situation)
    if patterns is None or not _denies_everybody(directive.sections, lines) or _opened_in_part(lines):
        return None
    if "!mod_authz_core.c" in modules(directive) and tuple(patterns) not in _denied_on_all(lines, situation):
        return None
    return _wanted(patterns, situation)


def denied_by_rule(expression: str, situation: Situation) -> Opinion | None:
    """Of a rule that denies paths, as they are in the file's folder."""
    written = _written_out(expression)
    base = "/".join(("", *situation.parts))
    patterns = [] if written is None else [_path_pattern(each, base) for each in written]
    known = [pattern for pattern in patterns if pattern is not None and is_denied_pattern(pattern)]
    if not known or len(known) < len(patterns) or _is_of_a_page(known, base):
        return None
    return _wanted(known, situation)


def _wanted(patterns: Sequence[str], situation: Situation) -> Opinion:
    if situation.around is not None and any("/" in pattern for pattern in patterns):
        return past(situation.around)
    if set(patterns) <= situation.denied or situation.is_denied:
        return translated("The site denies it.")
    listed = ", ".join(patterns[:5]) + (f" and {len(patterns) - 5} more" if len(patterns) > 5 else "")
    return blocks(f"Have the site deny {listed}.", *(Denied(pattern) for pattern in patterns))


def _of_section(directive: Directive, situation: Situation) -> list[str] | None:
    """What the sections around the line are about."""
    base = "/".join(("", *situation.parts))
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    if not sections:
        return [base] if situation.parts and is_denied_pattern(base) else None
    names = _names(sections[0]) if len(sections) == 1 else None
    if names is None:
        return None
    patterns = [f"{base}/**/{name}" if situation.parts else name for name in names]
    return patterns if all(map(is_denied_pattern, patterns)) and not _is_of_a_page(patterns, base) else None


def _is_of_a_page(patterns: Sequence[str], base: str) -> bool:
    """Where a folder is asked for, Apache shows the next page that there is in the place of one that is denied."""
    likely = [pattern for pattern in patterns if _may_deny(pattern, base)]
    return any(is_denied(pattern, f"{base}/{page}") for pattern in likely for page in INDEXES)


def _may_deny(pattern: str, base: str) -> bool:
    """False for nearly all, without a regular expression made for each: a pattern has a folder above the page, and the
    name of the page holds what is written of its name."""
    folder, _, name = pattern.removesuffix("/").rpartition("/")
    beneath, name = folder.removesuffix("/**"), name.strip("*")
    return f"{base}/".startswith(f"{beneath}/") and any(name in f"{base}/{page}" for page in INDEXES)


def _names(section: Section) -> list[str] | None:
    argument = section.argument.strip("\"'")
    if section.name == "files" and not argument.startswith("~"):
        return None if re.search(r"[?\[]", argument) else [argument]
    if section.name not in ("files", "filesmatch"):
        return None
    written = _written_out(argument.removeprefix("~").strip().strip("\"'"))
    names = [] if written is None else [_name_pattern(each) for each in written]
    known = [name for name in names if name is not None]
    return known if known and len(known) == len(names) else None


def _denies_everybody(sections: tuple[Section, ...], lines: Lines) -> bool:
    return lines.once(("denies everybody", sections), lambda: _keep_everybody_out(lines.beside(sections)))


def _keep_everybody_out(beside: Iterable[Directive]) -> bool:
    words = [_words(each) for each in beside]
    required = {arguments for name, arguments in words if name == "require"}
    denied = ("deny", ("from", "all")) in words
    orders = {arguments for name, arguments in words if name == "order"}
    others = [word for word in words if word[0] in ("allow", "satisfy", "authtype", "authuserfile")]
    others += [word for word in words if word[0] == "deny" and word[1] != ("from", "all")]
    if others or not required <= {("all", "denied")} or not orders <= {("deny,allow",), ("allow,deny",)}:
        return False
    return bool(required) or denied or orders == {("allow,deny",)}


def _opened_in_part(lines: Lines) -> bool:
    """A section of the file lets visitors see what another line of it denies."""
    return lines.once("opened in part", lambda: any(narrowing(each) and _words(each) in _OPENING for each in lines))


def _denied_on_all(lines: Lines, situation: Situation) -> Set[tuple[str, ...]]:
    """What the file denies on servers of today too: what a line denies on a server of old alone holds where the same is
    among it."""

    def find() -> Set[tuple[str, ...]]:
        found = set()
        for sections in lines.places:
            first = next((each for each in lines.beside(sections) if each.name in _SAYS_WHO), None)
            if first is None or "!mod_authz_core.c" in modules(first) or not _denies_everybody(sections, lines):
                continue
            patterns = _of_section(first, situation)
            if patterns is not None:
                found.add(tuple(patterns))
        return found

    return lines.once("denied on all", find)


def _words(directive: Directive) -> tuple[str, tuple[str, ...]]:
    return directive.name, tuple(argument.lower() for argument in directive.arguments)


def _name_pattern(written: str) -> str | None:
    begins, ends, text = _anchored(written)
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
    """Whether it begins and ends with the text, and the text; empty where it is not one text."""
    begins, ends = written.startswith(_BEGIN), written.endswith(_END)
    text = written.removeprefix(_BEGIN).removesuffix(_END)
    if text.startswith(_ANYTHING):
        begins, text = False, text.removeprefix(_ANYTHING)
    if text.endswith(_ANYTHING):
        ends, text = False, text.removesuffix(_ANYTHING)
    return begins, ends, "" if re.search(f"[{_BEGIN}{_END}{_ANYTHING}]", text) else text


def _written_out(expression: str) -> list[str] | None:
    """Every text that the expression stands for; None where there are too many, or it is not known."""
    if len(expression) > _LONGEST:
        return None
    tokens = list(_TOKEN.finditer(expression))
    if "".join(token[0] for token in tokens) != expression:
        return None
    try:
        return _Expression(tokens).written_out()
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The expression stands for too many texts, or for what is not known."""


class _Expression:
    """Goes over the tokens once. Texts are made longer where there are several to choose from, not by each letter."""

    def __init__(self, tokens: Sequence[re.Match[str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def written_out(self) -> list[str]:
        found = self._alternatives(0)
        if self._at < len(self._tokens):
            raise _UnknownError
        return found

    def _alternatives(self, depth: int) -> list[str]:
        """Up to the end of the group, which is the next token then, or to that of the expression."""
        if depth > _MOST_DEPTH:
            raise _UnknownError
        found, texts, letters = list[str](), [""], list[str]()
        while self._at < len(self._tokens) and (token := self._tokens[self._at])[0] != ")":
            self._at += 1
            if token[0] == "|":
                found += _continued(texts, ["".join(letters)])
                texts, letters = [""], []
            elif token[0] == "?":
                raise _UnknownError
            else:
                part = self._group(depth) if token[3] else [_letter(token)]
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


def _letter(token: re.Match[str]) -> str:
    return token[1] or token[5] or {"^": _BEGIN, "$": _END, ".*": _ANYTHING}[token[0]]


def _continued(texts: Sequence[str], part: Sequence[str]) -> list[str]:
    """Each of the texts with each of the part behind it. Raises `_UnknownError` for too many, or too long ones."""
    if len(texts) * len(part) > _MOST:
        raise _UnknownError
    found = [text + more for text in texts for more in part]
    if max(map(len, found)) > _LONGEST_TEXT:
        raise _UnknownError
    return found
