"""Parses zone files (RFC 1035, section 5), as other hosts' panels write them, into logical records.

Records of unsupported types, and those of the old host itself (SOA, NS of the zone), are left out with the reason.
`$INCLUDE` is never followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from svc_webhost.archives.model import MOST_ITEMS, FoundRecord, FoundZone

_CLASSES: Final = frozenset({"IN", "CH", "HS"})
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)(?:"|\\?\Z)|([^\s"]+)')
"""A quoted string without a closing quote extends to the end of its line."""
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LEAST_TTL, _MOST_TTL, _DEFAULT_TTL = 60, 604_800, 14_400
_LONGEST_LINE: Final = 70_000
_LONGEST_NAME: Final = 255


def read_zone(name: str, text: str) -> FoundZone:
    zone, seen = FoundZone(name), set[tuple[str, str]]()
    origin, owner, default = name, name, _DEFAULT_TTL
    for begins, words in _entries(text):
        if not words:
            continue
        if words[0] == "$ORIGIN" and len(words) > 1:
            named = _full(words[1], origin)
            if len(named) <= _LONGEST_NAME:
                origin = named
            else:
                _leave(zone, "$ORIGIN", "it is no name of a zone")
            continue
        if words[0] == "$TTL" and len(words) > 1:
            default = _ttl(words[1]) or default
            continue
        if words[0].startswith("$"):
            _leave(zone, words[0], "directives of zone files but $ORIGIN and $TTL are not followed")
            continue
        at = 1 if begins else 0
        if begins:
            owner = _full(words[0], origin)
        ttl = default
        while at < len(words) and (
            words[at].upper() in _CLASSES or (_ttl(words[at]) is not None and at + 1 < len(words))
        ):
            ttl = _ttl(words[at]) or ttl
            at += 1
        if at < len(words) and len(zone.records) + len(zone.left) < MOST_ITEMS:
            _add(zone, seen, owner, ttl, words[at].upper(), words[at + 1 :], origin)
    return zone


def _leave(zone: FoundZone, name: str, reason: str) -> None:
    if len(zone.left) < MOST_ITEMS:
        zone.left.append((name[:_LONGEST_NAME], reason))


def _add(
    zone: FoundZone, seen: set[tuple[str, str]], owner: str, ttl: int, kind: str, words: list[str], origin: str
) -> None:
    shown = f"{owner} {kind}"
    if kind == "SOA" or (kind == "NS" and owner == zone.name):
        zone.left.append((shown, "this server writes its own"))
        return
    if owner != zone.name and not owner.endswith(f".{zone.name}"):
        zone.left.append((shown, "it is not in the zone"))
        return
    try:
        data = _data(kind, words, origin)
    except (IndexError, ValueError):
        zone.left.append((shown, "its data cannot be read"))
        return
    if data is None:
        zone.left.append((shown, "records of this type are not offered"))
        return
    record = FoundRecord(owner, min(max(ttl, _LEAST_TTL), _MOST_TTL), kind, {"type": kind, **data})
    known = (record.name, repr(record.data))
    if known not in seen:
        seen.add(known)
        zone.records.append(record)


def _data(kind: str, words: list[str], origin: str) -> dict[str, Any] | None:
    match kind:
        case "A" | "AAAA":
            return {"address": words[0]}
        case "CNAME":
            return {"target": _full(words[0], origin)}
        case "NS" | "PTR":
            return {"target": _full(words[0], origin)}
        case "MX":
            return {"preference": int(words[0]), "exchange": _full(words[1], origin)}
        case "TXT" | "SPF":
            return {"text": "".join(words)} if kind == "TXT" else None
        case "SRV":
            priority, weight, port = map(int, words[:3])
            return {"priority": priority, "weight": weight, "port": port, "target": _full(words[3], origin)}
        case "CAA":
            return {"critical": bool(int(words[0]) & 128), "tag": words[1], "value": words[2]}
    return None


def _entries(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The words of each entry, and whether it starts with its owner. Parentheses join lines."""
    words: list[str] = []
    begins, open_ = False, 0
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE:
            continue
        if not open_:
            if words:
                yield begins, words
            words, begins = [], bool(line) and not line[0].isspace()
        for found in _TOKEN.finditer(_without_comment(line)):
            if found[1] is not None:
                words.append(re.sub(r"\\(.)", r"\1", found[1]))
                continue
            for part in re.split(r"([()])", found[2]):
                if part == "(":
                    open_ += 1
                elif part == ")":
                    open_ = max(0, open_ - 1)
                elif part:
                    words.append(part)
    if words:
        yield begins, words


def _without_comment(line: str) -> str:
    quoted = False
    for position, character in enumerate(line):
        if character == '"' and (position == 0 or line[position - 1] != "\\"):
            quoted = not quoted
        elif character == ";" and not quoted:
            return line[:position]
    return line


def _full(word: str, origin: str) -> str:
    name = word.lower()
    if name == "@":
        return origin
    if name.endswith("."):
        return name[:-1] or "."
    return f"{name}.{origin}"


def _ttl(word: str) -> int | None:
    if re.fullmatch(r"[0-9]{1,9}", word):
        return int(word)
    parts = re.fullmatch(r"(?:[0-9]{1,6}[smhdwSMHDW])+", word)
    if parts is None:
        return None
    return sum(int(each[:-1]) * _SECONDS[each[-1].lower()] for each in re.findall(r"[0-9]{1,6}[a-zA-Z]", word))
