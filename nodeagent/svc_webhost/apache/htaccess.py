"""The syntax of .htaccess files (https://httpd.apache.org/docs/2.4/configuring.html): one directive a line, a backslash
at its end continues it on the next one, `#` starts a comment line, `<Name argument>` opens a section."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

_WORD: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|(\S+)', re.ASCII)
_WHITE: Final = " \t\v\f\r"
"""Apache's white space. Python's contains more characters, and would find comments where Apache finds none."""
_OPENS: Final = re.compile(r"<([A-Za-z]+)(?![^ \t\v\f\r>])")
_CLOSES: Final = re.compile(r"</([A-Za-z]+)>")
MOST_DEPTH: Final = 32
"""The deepest nesting of sections. Each line refers to all sections around it, so their number is limited."""
TOO_DEEP: Final = f"it is nested in more than {MOST_DEPTH} sections"
_SECTIONS: Final = {
    *("files", "filesmatch", "if", "elseif", "ifmodule", "ifdefine", "ifversion", "iffile", "ifdirective", "ifsection"),
    *("limit", "limitexcept"),
}
_WITHOUT_ARGUMENT: Final = {"else", "requireall", "requireany", "requirenone"}
_TRANSPARENT: Final = frozenset({"ifmodule", "ifdefine", "ifversion"})

Found = TypeVar("Found")


_BEFORE_2_4: Final = re.compile(r"\s*(?:<\s*2\.4|<=?\s*2\.[0-3](?:\.[0-9]+)?)\s*")


@dataclass(frozen=True)
class Section:
    """`name` in lower case."""

    name: str
    argument: str

    @cached_property
    def skipped_today(self) -> bool:
        """Whether the section is for Apache 2.2 and before, as `<IfModule !mod_authz_core.c>` and `<IfVersion < 2.4>`
        are."""
        return self.module == "!mod_authz_core.c" or (
            self.name == "ifversion" and _BEFORE_2_4.fullmatch(self.argument) is not None
        )

    @cached_property
    def module(self) -> str | None:
        """The module of an `<IfModule>`, as `mod_x.c`; with `!` before it, it must be absent."""
        if self.name != "ifmodule":
            return None
        without, name = self.argument.startswith("!"), self.argument.lstrip("!").strip().lower()
        if name.endswith("_module"):
            name = f"mod_{name.removesuffix('_module')}.c"
        return f"{'!' if without else ''}{name}"


@dataclass(frozen=True)
class Directive:
    """`name` in lower case. `line` is the number of its first line, from 1. `sections` are around it, the outermost
    first. `broken`: an error in the line for which Apache would refuse the whole file, or `TOO_DEEP`."""

    line: int
    text: str
    name: str
    arguments: tuple[str, ...]
    sections: tuple[Section, ...]
    broken: str | None = None


def parse(text: str) -> list[Directive]:
    found: list[Directive] = []
    open_sections: list[tuple[int, Section]] = []
    inside: tuple[Section, ...] = ()
    for line, logical in _logical_lines(text):
        if closes := _CLOSES.fullmatch(logical):
            if open_sections and open_sections[-1][1].name == closes[1].lower():
                open_sections.pop()
                inside = inside[: len(open_sections)]
            else:
                found.append(Directive(line, logical, "", (), inside, "it closes a section that is not open"))
        elif opened := _opened(logical):
            section, known = opened
            if not known:
                found.append(Directive(line, logical, "", (), inside, "there is no such section"))
            open_sections.append((line, section))
            if len(inside) < MOST_DEPTH:
                inside = (*inside, section)
        elif logical.startswith("<"):
            found.append(Directive(line, logical, "", (), inside, "it is not a section"))
        elif len(open_sections) > MOST_DEPTH:
            found.append(Directive(line, logical, "", (), inside, TOO_DEEP))
        else:
            name, *arguments = _words(logical)
            found.append(Directive(line, logical, name.lower(), tuple(arguments), inside))
    found.extend(
        Directive(line, f"<{section.name}>", "", (), (), "this section is not closed")
        for line, section in open_sections
    )
    return found


def _opened(logical: str) -> tuple[Section, bool] | None:
    """The section that the line opens, and whether Apache knows such sections; None if the line opens no section."""
    opens = _OPENS.match(logical)
    if opens is None or not logical.endswith(">"):
        return None
    name, argument = opens[1].lower(), logical[opens.end() : -1].strip(_WHITE)
    known = name in _SECTIONS if argument else name in _WITHOUT_ARGUMENT
    return Section(name, " ".join(_words(argument))), known


class Lines:
    """The directives of one file in order, and by the section that they share.

    Results that are the same for all lines of a section are computed once (`once`): a tenant writes the file, and if
    each line looked at all others, the time would grow with the square of their number."""

    def __init__(self, directives: Sequence[Directive]) -> None:
        self._all = directives
        self._beside: dict[tuple[Section, ...], list[Directive]] = {}
        self._once: dict[Hashable, Any] = {}
        for each in directives:
            self._beside.setdefault(each.sections, []).append(each)

    def __iter__(self) -> Iterator[Directive]:
        return iter(self._all)

    @property
    def places(self) -> Iterable[tuple[Section, ...]]:
        """The sections with lines in them; () is the top level."""
        return self._beside.keys()

    def directly_in(self, sections: tuple[Section, ...]) -> Sequence[Directive]:
        """The lines directly in these sections."""
        return self._beside.get(sections, ())

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """`find()`, called once for each key."""
        if key not in self._once:
            self._once[key] = find()
        found: Found = self._once[key]
        return found


def narrowing(directive: Directive) -> tuple[str, ...]:
    """The names of those surrounding sections that limit what the directive applies to; sections that depend only on
    the server are left out."""
    return tuple(section.name for section in directive.sections if section.name not in _TRANSPARENT)


def modules(directive: Directive) -> tuple[str, ...]:
    """The modules that the directive requires, as `mod_x.c`; with `!` before it, the module must be absent."""
    return tuple(section.module for section in directive.sections if section.module is not None)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.removesuffix("\r")
        begun = begun or number
        if stripped.endswith("\\"):
            parts.append(stripped[:-1])
            continue
        whole = "".join([*parts, stripped]).strip(_WHITE)
        if whole and not whole.startswith("#"):
            found.append((begun, whole))
        begun, parts = 0, []
    whole = "".join(parts).strip(_WHITE)
    if whole and not whole.startswith("#"):
        found.append((begun, whole))
    return found


def _words(text: str) -> list[str]:
    return [
        re.sub(r"\\([\"'\\])", r"\1", match[1] if match[1] is not None else match[2]) if match[3] is None else match[3]
        for match in _WORD.finditer(text)
    ] or [text]
