"""Decodes the names in a zip archive as the people who made the archive read them.

The format knows two encodings: UTF-8, with a flag, and code page 437 of DOS. Programs that write UTF-8 without the flag
(Finder's "Compress") or backslashes between folders (PowerShell 5's Compress-Archive, .NET before 4.6.1) are common,
and other unpackers read both as they were meant: unzip, 7z and Nautilus.

Windows writes names in the code page of its own language, without naming it: GBK in China, Shift-JIS in Japan. Bytes of
one are valid in the others, so a guess would name files wrongly without anybody noticing. Names are therefore decoded
without a question only if all of them are UTF-8, or read as words in code page 437. Otherwise the archive is refused,
and the caller asked for the encoding; where nobody can be asked, it is code page 437, as the format says. Why:
docs/decisions/0061-names-in-zip-archives.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final
from zipfile import ZipInfo

from svc_webhost.confined.protocol import Failed, FileError

ENCODINGS: Final = (
    *("utf-8", "cp437", "cp850", "cp866", "cp1250", "cp1251", "cp1252"),
    *("gb18030", "big5", "shift_jis", "euc_kr"),
)
"""The encodings that a caller may name."""
# The code pages of Windows, which have more characters than the standards with these names.
_CODECS: Final = {"shift_jis": "cp932", "big5": "cp950", "euc_kr": "cp949"}
CODECS: Final = tuple(_CODECS.get(name, name) for name in ENCODINGS)
"""The names of Python's modules that decode these encodings. A confined process loads the modules beforehand
(`codecs.lookup`)."""
_ASKED_FOR: Final = ("gb18030", "big5", "shift_jis", "euc_kr", "cp866", "cp850", "cp1252")
_EXAMPLE_LENGTH: Final = 40
_IS_UTF_8: Final = 0x800
_UNIX: Final = 3
_RESOURCES: Final = b"__MACOSX"
"""The folder in which Finder packs what only macOS has of a file, such as its icon."""
# The accented letters of code page 437. Its other characters are frames, Greek letters and signs, which do not occur in
# names.
_LETTERS: Final = "".join(bytes([*range(0x80, 0x9B), *range(0xA0, 0xA6), 0xE1]).decode("cp437"))
_IS_WORD: Final = re.compile(f"[\x20-\x7e{_LETTERS}]*")
# No language of that code page has as many accents in a row; Cyrillic capitals of code page 866 look so.
_IN_A_ROW: Final = re.compile(f"[{_LETTERS}]{{3}}")
# Two bytes each, of which the second may be ASCII: katakana look like letters with circumflexes, "âeâXâg".
_EAST_ASIAN: Final = re.compile("[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{3}")


def names_of(entries: Sequence[ZipInfo], encoding: str | None = None, *, ask: bool = True) -> list[bytes | None]:
    """The name of each entry, in the order of the archive; None: it is left out. `encoding`: one of `ENCODINGS`, of
    names without a flag. Raises `FileError` if names cannot be read so; and with `ask`, if it is not known how."""
    unflagged = [raw for entry in entries if (raw := _unflagged(entry)) is not None]
    chosen = encoding or _recognised(unflagged)
    if chosen is None:
        if ask:
            raise _unknown(unflagged)
        chosen = "cp437"
    return [_without_resources(_name(entry, chosen)) for entry in entries]


def _recognised(names: Sequence[bytes]) -> str | None:
    """For a single name this proves little; if it holds for all names of an archive, it is sufficient."""
    if _all_decode(names, "utf-8"):
        return "utf-8"
    texts = [name.decode("cp437") for name in names]
    if not all(_IS_WORD.fullmatch(text) for text in texts) or any(map(_IN_A_ROW.search, texts)):
        return None
    for other in ("shift_jis", "gb18030"):
        if _all_decode(names, other) and any(_EAST_ASIAN.search(_decoded(name, other)) for name in names):
            return None
    return "cp437"


def _all_decode(names: Sequence[bytes], encoding: str) -> bool:
    try:
        for name in names:
            _decoded(name, encoding)
    except UnicodeDecodeError:
        return False
    return True


def _decoded(name: bytes, encoding: str) -> str:
    return name.decode(_CODECS.get(encoding, encoding))


def _unknown(names: Sequence[bytes]) -> FileError:
    name = max(names, key=lambda name: sum(byte > 0x7F for byte in name))
    readings = [
        f"{encoding} ({_decoded(name, encoding)[:_EXAMPLE_LENGTH]!r})"
        for encoding in _ASKED_FOR
        if _all_decode(names, encoding) and _decoded(name, encoding).isprintable()
    ]
    return FileError(
        Failed.INVALID,
        "The archive does not say how its names are encoded, and a guess could be wrong: nothing was unpacked. Unpack "
        f"it with an encoding: {', '.join([*readings, 'cp437'])}. Or pack it again with names in UTF-8, or as tar.",
    )


def _name(entry: ZipInfo, encoding: str) -> bytes:
    raw = _unflagged(entry)
    if raw is None:
        name = os.fsencode(entry.filename)
    else:
        try:
            name = _decoded(raw, encoding).encode()
        except UnicodeDecodeError:
            raise FileError(
                Failed.INVALID,
                f"{entry.filename[:200]} in the archive is not a name in {encoding}; nothing was unpacked.",
            ) from None
    # On Windows no name has a backslash; on Unix one may.
    return name if entry.create_system == _UNIX else name.replace(b"\\", b"/")


def _unflagged(entry: ZipInfo) -> bytes | None:
    """The bytes of a name whose encoding the archive does not say. The standard library has decoded them."""
    if entry.flag_bits & _IS_UTF_8:
        return None
    try:
        return entry.filename.encode("cp437")
    except UnicodeEncodeError:
        return None  # The name is of the extra field 0x7075, which is UTF-8.


def _without_resources(name: bytes) -> bytes | None:
    return None if name.split(b"/", 1)[0] == _RESOURCES else name
