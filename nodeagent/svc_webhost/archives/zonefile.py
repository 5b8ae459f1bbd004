"""Parses zone files (RFC 1035, section 5), as other hosts' panels write them, into logical records.

The form is BIND's: directives in any case, TTL and class in any order, parentheses, comments, escapes. Records of
unsupported types, and those of the old host itself (SOA, NS of the zone), are left out with the reason, and so is a
record whose data is not exactly what its type has. `$INCLUDE` is never followed.

dnspython parses zones too, but the process that reads an archive has no site-packages, and dnspython refuses a whole
zone for one line that it does not accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from svc_webhost.archives.model import MOST_ITEMS, FoundRecord, FoundZone

_CLASSES: Final = frozenset({"IN", "CH", "HS"})
# The alternatives differ in their first character, so that every text is read in linear time. A string without a
# closing quote extends to the end of its line.
_TOKEN: Final = re.compile(
    r'(?P<blank>[^\S\n]+)|;[^\n]*|(?P<line>\n)|(?P<parenthesis>[()])|"(?P<quoted>(?:[^"\\\n]|\\[^\n])*)(?:"|\\)?'
    r'|(?P<word>(?:[^\s"();\\]|\\[^\n])+)'
)
_ESCAPE: Final = re.compile(rb"\\(?:([0-9]{3})|(.))", re.DOTALL)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LEAST_TTL, _MOST_TTL, _DEFAULT_TTL = 60, 604_800, 14_400
_LONGEST_NAME: Final = 255
_NOT_UNICODE: Final = "\ufffd"


def read_zone(name: str, text: str) -> FoundZone:
    zone, seen = FoundZone(name), set[tuple[str, str]]()
    origin, owner = name, name
    default: int | None = None
    last: int | None = None
    for begins, words in _entries(text.removeprefix("\ufeff")):
        directive = words[0].upper()
        if len(zone.records) + len(zone.left) >= MOST_ITEMS:
            zone.left.append((name, f"only the first {MOST_ITEMS:,} records of a zone are read"))
            break
        if directive == "$ORIGIN" and len(words) > 1:
            named = _full(words[1], origin)
            if len(named) <= _LONGEST_NAME:
                origin = named
            else:
                _leave(zone, seen, "$ORIGIN", "it is no name of a zone")
            continue
        if directive == "$TTL" and len(words) > 1:
            default = _ttl(words[1]) or default
            continue
        if directive.startswith("$"):
            _leave(zone, seen, words[0], "directives of zone files but $ORIGIN and $TTL are not followed")
            continue
        at = 1 if begins else 0
        if begins:
            owner = _full(words[0], origin)
        stated: int | None = None
        while at < len(words) and (
            words[at].upper() in _CLASSES or (_ttl(words[at]) is not None and at + 1 < len(words))
        ):
            stated = _ttl(words[at]) or stated
            at += 1
        # Without $TTL, a record has the TTL that was stated last.
        last = stated or last
        if at < len(words):
            ttl = stated or default or last or _DEFAULT_TTL
            _add(zone, seen, owner, ttl, words[at].upper(), words[at + 1 :], origin)
    return zone


def _leave(zone: FoundZone, seen: set[tuple[str, str]], name: str, reason: str) -> None:
    """Leave a record out, and mention it once."""
    left = name[:_LONGEST_NAME], reason
    if left not in seen:
        seen.add(left)
        zone.left.append(left)


def _add(
    zone: FoundZone, seen: set[tuple[str, str]], owner: str, ttl: int, kind: str, words: list[str], origin: str
) -> None:
    shown = f"{owner} {kind}"
    if kind == "SOA" or (kind == "NS" and owner == zone.name):
        _leave(zone, seen, shown, "this server writes its own")
        return
    if owner != zone.name and not owner.endswith(f".{zone.name}"):
        _leave(zone, seen, shown, "it is not in the zone")
        return
    try:
        data = _data(kind, words, origin)
    except ValueError:
        _leave(zone, seen, shown, "its data cannot be read")
        return
    if data is None:
        _leave(zone, seen, shown, "records of this type are not supported")
        return
    record = FoundRecord(owner, min(max(ttl, _LEAST_TTL), _MOST_TTL), kind, {"type": kind, **data})
    known = (record.name, repr(record.data))
    if known not in seen:
        seen.add(known)
        zone.records.append(record)


def _data(kind: str, words: list[str], origin: str) -> dict[str, Any] | None:
    """The record's data; None for an unsupported type. Raises ValueError for data that the type does not have."""
    match kind:
        case "A" | "AAAA":
            (address,) = words
            return {"address": address}
        case "CNAME" | "NS" | "PTR":
            (target,) = words
            return {"target": _full(target, origin)}
        case "MX":
            preference, exchange = words
            return {"preference": int(preference), "exchange": _full(exchange, origin)}
        case "TXT":
            text = "".join(words)
            if not words or _NOT_UNICODE in text:
                raise ValueError(text)
            return {"text": text}
        case "SRV":
            priority, weight, port, target = words
            numbers = {"priority": int(priority), "weight": int(weight), "port": int(port)}
            return {**numbers, "target": _full(target, origin)}
        case "CAA":
            flags, tag, value = words
            return {"critical": bool(int(flags) & 128), "tag": tag.lower(), "value": value}
        case "TLSA":
            usage, selector, matching, *digits = words
            numbers = {"usage": int(usage), "selector": int(selector), "matching": int(matching)}
            return {**numbers, "certificate": "".join(digits)}
        case "SSHFP":
            algorithm, type_, *digits = words
            return {"algorithm": int(algorithm), "fingerprint_type": int(type_), "fingerprint": "".join(digits)}
        case "DS":
            tag, algorithm, type_, *digits = words
            numbers = {"key_tag": int(tag), "algorithm": int(algorithm), "digest_type": int(type_)}
            return {**numbers, "digest": "".join(digits)}
    return None


def _entries(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The words of each entry, and whether it starts with its owner. Parentheses join lines."""
    words: list[str] = []
    begins, open_, fresh = False, 0, True
    for token in _TOKEN.finditer(text):
        kind, found = token.lastgroup, token[0]
        if kind == "line" and not open_:
            if words:
                yield begins, words
            words, fresh = [], True
            continue
        if fresh:
            begins, fresh = kind != "blank", False
        if kind == "parenthesis":
            open_ = open_ + 1 if found == "(" else max(0, open_ - 1)
        elif kind in ("quoted", "word"):
            words.append(_plain(token[kind]))
    if words:
        yield begins, words


def _plain(word: str) -> str:
    """The word without escapes. An escape stands for a byte: `\\195\\164` is one letter."""
    if "\\" not in word:
        return word

    def byte(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return found[2]
        return bytes([int(found[1])]) if int(found[1]) < 256 else found[1]

    return _ESCAPE.sub(byte, word.encode(errors="replace")).decode(errors="replace")


def _full(word: str, origin: str) -> str:
    name = word.lower()
    if name == "@":
        return origin
    if name.endswith("."):
        return name[:-1] or "."
    return name if origin == "." else f"{name}.{origin}"


def _ttl(word: str) -> int | None:
    if re.fullmatch(r"[0-9]{1,9}", word):
        return int(word)
    parts = re.fullmatch(r"(?:[0-9]{1,6}[smhdwSMHDW])+", word)
    if parts is None:
        return None
    return sum(int(each[:-1]) * _SECONDS[each[-1].lower()] for each in re.findall(r"[0-9]{1,6}[a-zA-Z]", word))
