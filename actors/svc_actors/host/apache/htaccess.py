"""The syntax of .htaccess files (https://httpd.apache.org/docs/2.4/configuring.html): a directive a line, a backslash
at its end goes on with the next one, `#` begins a comment line, sections are opened by `<Name argument>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|(\S+)', re.ASCII)
_WHITE: Final = " \t\v\f\r"
"""What Apache takes for white space. Python takes more for it, and would find comments where Apache finds none."""
_OPENS: Final = re.compile(r"<([A-Za-z]+)(?:\s+(.*?))?\s*>\s*$", re.ASCII)
_CLOSES: Final = re.compile(r"</([A-Za-z]+)>\s*$", re.ASCII)
_SECTIONS: Final = {
    *("files", "filesmatch", "if", "elseif", "ifmodule", "ifdefine", "ifversion", "iffile", "ifdirective", "ifsection"),
    *("limit", "limitexcept"),
}
_WITHOUT_ARGUMENT: Final = {"else", "requireall", "requireany", "requirenone"}
_TRANSPARENT: Final = frozenset({"ifmodule", "ifdefine", "ifversion"})


@dataclass(frozen=True)
class Section:
    """`name` in small letters."""

    name: str
    argument: str


@dataclass(frozen=True)
class Directive:
    """`name` in small letters. `line` is where it begins, from 1. `sections` are around it, the outermost first.
    `broken`: what is wrong with the line, where Apache would refuse the whole file."""

    line: int
    text: str
    name: str
    arguments: tuple[str, ...]
    sections: tuple[Section, ...]
    broken: str | None = None


def parse(text: str) -> list[Directive]:
    found: list[Directive] = []
    open_sections: list[tuple[int, Section]] = []
    for line, logical in _logical_lines(text):
        inside = tuple(section for _, section in open_sections)
        if closes := _CLOSES.match(logical):
            if open_sections and open_sections[-1][1].name == closes[1].lower():
                open_sections.pop()
            else:
                found.append(Directive(line, logical, "", (), inside, "it closes a section that is not open"))
        elif opens := _OPENS.match(logical):
            name, argument = opens[1].lower(), opens[2] or ""
            if not (name in _SECTIONS and argument) and not (name in _WITHOUT_ARGUMENT and not argument):
                found.append(Directive(line, logical, "", (), inside, "there is no such section"))
            open_sections.append((line, Section(name, " ".join(_words(argument)))))
        elif logical.startswith("<"):
            found.append(Directive(line, logical, "", (), inside, "it is no section"))
        else:
            name, *arguments = _words(logical)
            found.append(Directive(line, logical, name.lower(), tuple(arguments), inside))
    found.extend(
        Directive(line, f"<{section.name}>", "", (), (), "this section is not closed")
        for line, section in open_sections
    )
    return found


def narrowing(directive: Directive) -> tuple[str, ...]:
    """The names of the sections around it that say for what it holds, and not for which server."""
    return tuple(section.name for section in directive.sections if section.name not in _TRANSPARENT)


def modules(directive: Directive) -> tuple[str, ...]:
    """Those that have to be there for it, as `mod_x.c`; with `!` before it, not to be there."""
    found = []
    for section in directive.sections:
        if section.name == "ifmodule":
            without, name = section.argument.startswith("!"), section.argument.lstrip("!").strip().lower()
            if name.endswith("_module"):
                name = f"mod_{name.removesuffix('_module')}.c"
            found.append(f"{'!' if without else ''}{name}")
    return tuple(found)


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
