"""What .htaccess files deny, as the denied paths of a site (`DeniedPattern`): a folder, files of a name, and names or
paths that an expression stands for, where it can be written out.

Invariant: what a wish denies is all that its line denies. It may be more: what is below a denied file, and folders that
are called as such a file is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

from pydantic import TypeAdapter

from svc_actors.host.apache.htaccess import Directive, Section, modules, narrowing
from svc_actors.host.nginx import DeniedPattern
from svc_actors.host.nginx.access import is_denied
from svc_actors.panel.htaccess.situation import INDEXES, Situation
from svc_actors.panel.htaccess.verdicts import Denied, Opinion, blocks, past, translated

_MOST: Final = 60
"""Patterns of one expression."""
_PATTERN: Final = TypeAdapter[str](DeniedPattern)
_BEGIN, _END, _ANYTHING = "\x02", "\x03", "\x04"
"""Stand for `^`, `$` and `.*` in what an expression is written out to."""
_TOKEN: Final = re.compile(r"\\([^A-Za-z0-9])|(\.\*)|(\(\?:|\()|([)|^$?])|([A-Za-z0-9_~@=,:&!/-])")
_OPENING: Final = {("require", ("all", "granted")), ("allow", ("from", "all"))}


def denied_by_section(directive: Directive, all_: Sequence[Directive], situation: Situation) -> Opinion | None:
    """Of a line that keeps everybody from what its section is about; None where it is another, or it cannot be said."""
    patterns = _of_section(directive, situation)
    if patterns is None or not _denies_everybody(directive, all_) or _opened_in_part(all_):
        return None
    if "!mod_authz_core.c" in modules(directive) and not _denied_elsewhere(directive, all_, situation, patterns):
        return None
    return _wanted(patterns, situation)


def denied_by_rule(expression: str, situation: Situation) -> Opinion | None:
    """Of a rule that denies paths, as they are in the file's folder."""
    written = _written_out(expression)
    base = "/".join(("", *situation.parts))
    patterns = [] if written is None else [_path_pattern(each, base) for each in written]
    known = [pattern for pattern in patterns if pattern is not None and _taken(pattern)]
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
        return [base] if situation.parts and _taken(base) else None
    names = _names(sections[0]) if len(sections) == 1 else None
    if names is None:
        return None
    patterns = [f"{base}/**/{name}" if situation.parts else name for name in names]
    return patterns if all(map(_taken, patterns)) and not _is_of_a_page(patterns, base) else None


def _is_of_a_page(patterns: Sequence[str], base: str) -> bool:
    """Where a folder is asked for, Apache shows the next page that there is in the place of one that is denied."""
    return any(is_denied(pattern, f"{base}/{page}") for pattern in patterns for page in INDEXES)


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


def _denies_everybody(directive: Directive, all_: Iterable[Directive]) -> bool:
    words = [_words(each) for each in all_ if each.sections == directive.sections]
    required = {arguments for name, arguments in words if name == "require"}
    denied = ("deny", ("from", "all")) in words
    orders = {arguments for name, arguments in words if name == "order"}
    others = [word for word in words if word[0] in ("allow", "satisfy", "authtype", "authuserfile")]
    others += [word for word in words if word[0] == "deny" and word[1] != ("from", "all")]
    if others or not required <= {("all", "denied")} or not orders <= {("deny,allow",), ("allow,deny",)}:
        return False
    return bool(required) or denied or orders == {("allow,deny",)}


def _opened_in_part(all_: Iterable[Directive]) -> bool:
    """A section of the file lets visitors see what another line of it denies."""
    return any(narrowing(each) and _words(each) in _OPENING for each in all_)


def _denied_elsewhere(
    directive: Directive, all_: Sequence[Directive], situation: Situation, patterns: list[str]
) -> bool:
    """What holds on a server of old alone, where the same is said for others."""
    return any(
        each.name in ("require", "order", "allow", "deny")
        and "!mod_authz_core.c" not in modules(each)
        and _denies_everybody(each, all_)
        and _of_section(each, situation) == patterns
        for each in all_
    )


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


def _taken(pattern: str) -> bool:
    try:
        _PATTERN.validate_python(pattern)
    except ValueError:
        return False
    return True


def _written_out(expression: str) -> list[str] | None:
    """Every text that the expression stands for; None where there are too many, or it is not known."""
    tokens = list(_TOKEN.finditer(expression))
    if "".join(token[0] for token in tokens) != expression:
        return None
    parsed, rest = _alternatives(tokens)
    return None if rest or parsed is None else parsed


def _alternatives(tokens: list[re.Match[str]]) -> tuple[list[str] | None, list[re.Match[str]]]:
    """Up to the end of the group; what follows."""
    found, parts = list[str](), [[""]]
    while tokens and tokens[0][0] != ")":
        token, tokens = tokens[0], tokens[1:]
        if token[0] == "|":
            found += _joined(parts)
            parts = [[""]]
            continue
        if token[3]:
            inner, tokens = _alternatives(tokens)
            if inner is None or not tokens:
                return None, tokens
            part, tokens = inner, tokens[1:]
        elif token[0] == "?":
            return None, tokens
        else:
            part = [token[1] or token[5] or {"^": _BEGIN, "$": _END, ".*": _ANYTHING}[token[0]]]
        if tokens and tokens[0][0] == "?":
            part, tokens = [*part, ""], tokens[1:]
        parts.append(part)
        if len(_joined(parts)) > _MOST:
            return None, tokens
    found += _joined(parts)
    return (found if len(found) <= _MOST else None), tokens


def _joined(parts: list[list[str]]) -> list[str]:
    return ["".join(each) for each in product(*parts)]
